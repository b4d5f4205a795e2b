"""Runs that begin with another run's state, forks of them, and settings that can change: exact, killed or not."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from flows.branching.branches import fork, rollback
from flows.reports.audit import verify_run
from flows.reports.lineage import lineage_of
from tests.workloads.in_process import OwnRun
from tests.workloads.test_contract import spec_of
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import entry_of_file, publish_manifest
from yatt_core.workloads.inputs import materialise_workload

COUNTING = Path(__file__).parent / "counting.yaml"
STAGED = "workload.kind=tests.workloads.counting:Staged"
FACTOR = "workload.tunable={factor: 2}"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def staged(folder: Path, *overrides: str) -> OwnRun:
    return OwnRun.of(folder, COUNTING, STAGED, FACTOR, *overrides)


def newest_checkpoint(own: OwnRun) -> Path:
    with own.ledger() as ledger:
        return own.folder / ledger.records.checkpoints(own.run)[0].folder


def means(own: OwnRun) -> dict[int, float]:
    with own.ledger() as ledger:
        return dict(ledger.metrics.history(own.run, "evaluation/mean"))


@pytest.fixture
def first(tmp_path: Path) -> OwnRun:
    own = OwnRun.of(tmp_path / "first", COUNTING)
    own.drive()
    return own


def test_a_stage_begins_with_the_state_of_another_run_of_which_it_has_a_copy(tmp_path: Path, first: OwnRun) -> None:
    start = f"workload.start.path={newest_checkpoint(first)}"
    weights = first.results().weights_digest
    undisturbed, struck = (staged(tmp_path / name, start) for name in ("undisturbed", "struck"))
    undisturbed.drive()
    for number, place in enumerate(("sft:0", "after prepare:1", "after learn:3", "commit:4")):
        assert struck.drive(place, cold=number % 2 == 0) is None
        if number == 0:
            shutil.rmtree(first.folder)
    struck.drive(cold=True)
    assert struck.results().weights_digest == undisturbed.results().weights_digest is not None
    assert struck.results().metrics_digest == undisturbed.results().metrics_digest
    assert means(struck)[0] == means(first)[4] > 0, "it begins where the first one has ended"
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
        (origin,) = lineage_of(ledger, struck.home, struck.run).origins
    assert (origin.run, origin.iteration, origin.weights_digest) == (first.run, 4, weights)
    assert report.sound, report.disagreement


def test_what_is_no_state_to_begin_with_is_refused(tmp_path: Path, first: OwnRun) -> None:
    def build(*overrides: str) -> None:
        materialise_workload(spec_of(*overrides), tmp_path / "built")

    folder = newest_checkpoint(first)
    start = f"workload.start.path={folder}"
    with pytest.raises(
        ConfigurationError, match=r"workload.start: .*Counting cannot .* has no method continue_from; use null"
    ):
        build(start)
    with pytest.raises(
        ConfigurationError, match=r"workload.start.path: .*manifest.json: cannot be read.* expected the folder"
    ):
        build(STAGED, f"workload.start.path={tmp_path}")
    with pytest.raises(ConfigurationError, match=r"start: only a workload of your own has start"):
        spec_of("workload.kind=language", start)
    file = next(folder.glob("weights/*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match="sha256 is"):
        build(STAGED, start)
    file.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        build(STAGED, start)
    assert not (tmp_path / "built" / "inputs").exists()


def test_the_checkpoint_of_a_language_model_is_no_start(tmp_path: Path) -> None:
    folder = tmp_path / "language"
    (folder / "weights").mkdir(parents=True)
    file = folder / "weights" / "rank-00000.safetensors"
    file.write_bytes(b"none")
    identity = CheckpointIdentity("language-1", branch=0, iteration=3, term=1, spec_digest="", weights_digest="")
    publish_manifest(folder, "checkpoint", asdict(identity), {"weights/rank-00000.safetensors": entry_of_file(file)})
    with pytest.raises(ConfigurationError, match="holds no state of a workload; expected a checkpoint of a run with"):
        materialise_workload(spec_of(STAGED, f"workload.start.path={folder}"), tmp_path / "built")


def test_a_fork_and_a_revision_change_what_is_tunable_and_nothing_else(tmp_path: Path) -> None:
    own = staged(tmp_path / "runs")
    own.drive()
    forked = fork(own.home, own.run, 2, ["workload.tunable.factor=3"])
    other = OwnRun.opened(own.home, forked.run)
    other.drive()
    doubled = means(own)
    tripled = means(other)
    assert tripled[2] == doubled[2]
    assert (tripled[4] - tripled[2]) / (doubled[4] - doubled[2]) == pytest.approx(1.5)
    with pytest.raises(ConfigurationError, match=r"workload.settings cannot change during a run or in its forks"):
        fork(own.home, own.run, 2, ["workload.settings.spacing=3"])
    with pytest.raises(ConfigurationError, match=r"workload.start cannot change"):
        fork(own.home, own.run, 2, ["workload.start.path=/elsewhere"])

    revised = staged(tmp_path / "revised")
    revised.drive(until=2)
    revised.revise("workload.tunable.factor=3")
    assert revised.drive("after learn:4") is None
    revised.drive(cold=True)
    assert revised.results().weights_digest == other.results().weights_digest


def test_a_rollback_draws_other_numbers(tmp_path: Path) -> None:
    own = staged(tmp_path / "runs")
    own.drive()
    before = means(own)
    rollback(own.home, own.run, 2)
    own.drive(cold=True)
    after = means(own)
    assert after[2] == before[2] and after[4] != before[4]


def test_a_setting_stands_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tunable.factor: stands in settings too; expected each setting once"):
        spec_of(STAGED, FACTOR, "workload.settings={factor: 1}")
