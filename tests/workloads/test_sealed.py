"""What iterations of a workload have learnt from: its digest, and the audit of the files that keep it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from flows.files.retention import PRUNED_EVENT
from flows.reports.audit import CommitPlace, Disagreement, verify_run
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.digests import chain_digest
from yatt_core.experience.prepared import prepared_folder, rank_file
from yatt_core.workloads.columns import COLUMNS, COLUMNS_DIGEST

COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"
PAINTING = ROOT / "tests" / "workloads" / "painting.yaml"
RANK_FILE = rank_file(0, COLUMNS)
Damage = Callable[[Path], None]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def disagreement(own: OwnRun) -> Disagreement | None:
    with own.ledger() as ledger:
        return verify_run(ledger, own.run, own.folder, None).disagreement


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_an_audit_names_a_file_of_columns_that_is_not_the_sealed_one(tmp_path: Path, damage: Damage) -> None:
    own = OwnRun.of(tmp_path, COUNTING)
    own.drive()
    assert disagreement(own) is None
    path = own.folder / prepared_folder(0, 4, 1) / RANK_FILE
    damage(path)
    found = disagreement(own)
    assert found is not None and (found.check, found.place) == ("experience", str(path))


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_an_audit_names_an_image_that_is_not_the_sealed_one(tmp_path: Path, damage: Damage) -> None:
    own = OwnRun.of(tmp_path, PAINTING)
    own.drive()
    assert disagreement(own) is None
    path = sorted((own.folder / prepared_folder(0, 4, 1) / "images").glob("*.png"))[0]
    damage(path)
    found = disagreement(own)
    assert found is not None and (found.check, found.place) == ("experience", str(path))


def test_a_folder_that_is_gone_is_a_fault_unless_retention_has_removed_it(tmp_path: Path) -> None:
    own = OwnRun.of(tmp_path, COUNTING)
    own.drive()
    folder = own.folder / prepared_folder(0, 4, 1)
    folder.rename(tmp_path / "elsewhere")
    found = disagreement(own)
    assert found is not None and str(folder) in found.place
    with own.ledger() as ledger:
        ledger.events.append(own.run, PRUNED_EVENT, {"branch": 0, "first": 4, "last": 4})
    assert disagreement(own) is None


def test_columns_on_another_machine_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a durable tier the machines of a run need not share a folder; the tier has no columns."""
    own = OwnRun.of(tmp_path, COUNTING)
    own.drive()
    (own.folder / prepared_folder(0, 4, 1)).rename(tmp_path / "elsewhere")
    monkeypatch.setattr("flows.reports.audit.store_of", lambda *_: mock.Mock())
    with own.ledger() as ledger:
        report = verify_run(ledger, own.run, own.folder, None)
    assert report.sound and report.elsewhere == (CommitPlace(0, 4),)


def test_an_audit_after_pruning_still_reads_what_is_left(tmp_path: Path) -> None:
    own = OwnRun.of(tmp_path, COUNTING, "checkpoints.every=1", "checkpoints.keep=1", "retention.experience=needed")
    own.drive()
    assert not (own.folder / prepared_folder(0, 1, 1)).exists(), "retention has removed it"
    assert disagreement(own) is None


def test_an_audit_reads_what_a_replay_has_made_again(tmp_path: Path) -> None:
    """Iteration 3 is committed, and replayed from the checkpoint of iteration 2 after its columns were damaged."""
    own = OwnRun.of(tmp_path, COUNTING)
    assert own.drive("prepare:4") is None
    flip(own.folder / prepared_folder(0, 3, 1) / RANK_FILE)
    own.drive(cold=True)
    assert disagreement(own) is None
    made = own.folder / prepared_folder(0, 3, 2) / RANK_FILE
    made.unlink()
    found = disagreement(own)
    assert found is not None and found.place == str(made)


def test_the_digest_of_experience_is_that_of_what_iterations_learnt_from(tmp_path: Path) -> None:
    quiet = OwnRun.of(tmp_path / "quiet", COUNTING)
    quiet.drive()
    struck = OwnRun.of(tmp_path / "struck", COUNTING)
    struck.drive(until=2)
    struck.drive(cold=True)
    other = OwnRun.of(tmp_path / "other", COUNTING, "seed=7")
    other.drive()
    assert quiet.results().experience_digest == struck.results().experience_digest
    assert quiet.results().experience_digest != other.results().experience_digest
    with quiet.ledger() as ledger:
        commits = [ledger.commits.at(quiet.run, iteration) for iteration in (1, 2, 3, 4)]
        learnt = [str(commit.fingerprint[COLUMNS_DIGEST]) for commit in commits if commit is not None]
    assert quiet.results().experience_digest == chain_digest(learnt) and len(set(learnt)) == 4
