"""Workloads of one's own survive what language models survive: killed in each phase, they end with the same bits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from db.write.events import COLUMNS_REGENERATED
from flows.reports.audit import verify_run
from tests.matrix import in_verify
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.experience.prepared import prepared_folder, rank_file

EXAMPLE = ROOT / "configs" / "word_vectors.yaml"
SMALL = ("iterations=6", "checkpoints.every=2", "evaluation.every=3")
COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"
KILLED_AT = (
    "start:0", "sft:0", "evaluate:0", "commit_start:0", "prepare:1", "after prepare:1", "learn:2", "after learn:2",
    "checkpoint:2", "after checkpoint:2", "commit:3", "after evaluate:3", "recover:2", "after learn:5",
)  # fmt: skip
NOTHING = hashlib.sha256().hexdigest()
PHASES = {"start", "recover", "sft", "prepare", "learn", "evaluate", "checkpoint", "commit", "commit_start"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def same_result(one: OwnRun, other: OwnRun) -> bool:
    found = [run.results() for run in (one, other)]
    return all(
        getattr(found[0], key) == getattr(found[1], key) not in (None, NOTHING)
        for key in ("weights_digest", "experience_digest", "metrics_digest")
    )


def test_a_run_killed_in_every_phase_gives_the_same_bits(tmp_path: Path) -> None:
    """The rank outlives its driver every other time; otherwise the next one restores and replays."""
    undisturbed = OwnRun.of(tmp_path / "undisturbed", EXAMPLE, *SMALL)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", EXAMPLE, *SMALL)
    reached = [place for number, place in enumerate(KILLED_AT) if struck.drive(place, cold=number % 2 == 1) is None]
    outcome = struck.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"
    assert reached == list(KILLED_AT)
    assert same_result(struck, undisturbed)
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
        accuracy = [value for _, value in ledger.metrics.history(struck.run, "evaluation/accuracy")]
        phases = {row.phase for iteration in range(7) for row in ledger.phases.attempts(struck.run, 0, iteration)}
    assert report.sound, report.disagreement
    assert len(accuracy) == 3 and accuracy[-1] > accuracy[0]
    assert phases == PHASES, "nothing is placed, collected or sent to engines"


@pytest.mark.parametrize("cold", [True, *in_verify(False)])
def test_what_was_sampled_before_a_kill_is_learnt_from(cold: bool, tmp_path: Path) -> None:
    def sampling(name: str) -> tuple[OwnRun, Path]:
        notes = tmp_path / f"{name}.txt"
        kind = "workload.kind=tests.workloads.counting:Sampling"
        return OwnRun.of(tmp_path / name, COUNTING, kind, f"workload.settings={{notes: {notes}}}"), notes

    undisturbed, _ = sampling("undisturbed")
    undisturbed.drive()
    struck, notes = sampling("struck")
    assert struck.drive("after prepare:3") is None
    assert notes.read_text().split() == ["1", "2", "3"]
    # The receipt of the phase was not recorded, so that what it sealed is not known: it is sampled again, with the same bits.
    assert struck.drive("learn:3", cold=cold) is None
    assert notes.read_text().split() == ["1", "2", "3", "3"]
    struck.drive(cold=cold)
    assert notes.read_text().split() == ["1", "2", "3", "3", "4"], "neither the kill nor the replay samples again"
    notes_digest = struck.results().metrics_digest
    assert notes_digest == undisturbed.results().metrics_digest
    assert struck.results().weights_digest == undisturbed.results().weights_digest
    assert struck.results().experience_digest == undisturbed.results().experience_digest


def test_damaged_columns_are_made_again(tmp_path: Path) -> None:
    undisturbed = OwnRun.of(tmp_path / "undisturbed", COUNTING)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", COUNTING)
    assert struck.drive("learn:3") is None
    (struck.folder / prepared_folder(0, 3, 1) / rank_file(0, ".safetensors")).write_bytes(b"damaged")
    struck.drive(cold=True)
    assert same_result(struck, undisturbed)
    damaged = prepared_folder(0, 3, 1)
    assert [text for text in struck.warnings if damaged in text] == [
        f"{damaged} is damaged or missing; making these columns again"
    ]
    with struck.ledger() as ledger:
        (link,) = ledger.events.of_kind(struck.run, COLUMNS_REGENERATED)
    assert (link.body["iteration"], link.body["lost"]["folder"]) == (3, damaged)
    assert link.body["made"]["folder"] == prepared_folder(0, 3, 2)


def test_an_update_that_is_not_finite_is_skipped_or_undone(tmp_path: Path) -> None:
    broken = "workload.settings={broken: loss, at: 3}"
    skipped = OwnRun.of(tmp_path / "skipped", COUNTING, broken, "recovery.on_non_finite=skip")
    assert (outcome := skipped.drive()) is not None and outcome.state == "completed"
    with skipped.ledger() as ledger:
        assert ledger.metrics.history(skipped.run, "update/skipped") == [(3, 1.0)]
        before, after = (ledger.commits.at(skipped.run, iteration) for iteration in (2, 3))
        assert before is not None and after is not None
        assert before.weights_digest == after.weights_digest, "nothing of the broken update is left"
    rolled = OwnRun.of(tmp_path / "rolled", COUNTING, broken, "recovery.on_non_finite=rollback")
    assert (outcome := rolled.drive()) is not None and outcome.state == "completed"
    with rolled.ledger() as ledger:
        (commit,) = [commit for commit in [ledger.commits.at(rolled.run, 4)] if commit is not None]
    assert commit.branch == 1, "the new branch draws none of what led to the failure"
    assert commit.state["cursor"]["ordinal"] == 5
