"""The keeper of a session's checkpoints, which adopts or deletes those of a lost driver; and retention."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.write.commit import IterationCommit
from flows.files.retention import PRUNED_EVENT, prune_experience
from flows.run.home import Home
from tests.checkpoints.bench import SPEC, Bench
from tests.ops.audited import weights
from yatt_core.errors import StorageFullError
from yatt_core.keys import iteration_folder
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.spec import RunSpec


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(Home(tmp_path / "runs"))
    yield made
    made.ledger.close()


def test_a_checkpoint_whose_driver_died_before_recording_it_is_adopted(bench: Bench) -> None:
    bench.commit(0, 1)
    row = bench.publish(1)
    bench.take_over()
    assert bench.keeper().attach(in_flight=False)[0].folder == row.folder
    assert bench.keeper().at(1) is not None
    assert bench.keeper().at(1).manifest_sha256 == row.manifest_sha256  # type: ignore[union-attr]
    assert bench.keeper().attach(in_flight=False) == []


@pytest.mark.parametrize(
    "flaw", ["not committed", "another spec", "a newer term", "other weights", "damaged", "half", "superseded"]
)
def test_an_unusable_checkpoint_is_deleted(bench: Bench, flaw: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.commit(0, 1, 2)
    if flaw == "another spec":
        bench.publish(1, spec_digest="0" * 64)
    elif flaw == "a newer term":
        bench.publish(1, term=7)
    elif flaw == "superseded":
        bench.publish(2)
        bench.roll_back(1)
    elif flaw == "half":
        (bench.folder / "checkpoints/.b000-i000001.t0001.partial").mkdir(parents=True)
    elif flaw == "not committed":
        bench.publish(3)
    elif flaw == "damaged":
        (bench.folder / bench.publish(1).folder / "weights.safetensors").write_bytes(b"x")
    else:
        bench.ledger.commits.commit(bench.fence, IterationCommit(0, 3, {}, 1, "x", weights(9), trackers=()))
        bench.publish(3)
    bench.take_over()
    assert bench.keeper().attach(in_flight=False) == []
    assert bench.folders() == []


def test_a_checkpoint_in_flight_is_kept_and_partial_ones_are_deleted_after_it(bench: Bench) -> None:
    bench.commit(0, 1)
    (bench.folder / "checkpoints/.b000-i000001.t0001.partial").mkdir(parents=True)
    row = bench.publish(2)  # its iteration is not committed yet; its trainer is alive and holds the receipt
    bench.take_over()
    keeper = bench.keeper()
    assert keeper.attach(in_flight=True) == []
    assert bench.folders() == [".b000-i000001.t0001.partial", "b000-i000002.t0001"]
    bench.trainer.result = CheckpointReceipt(0, 2, 1, row.folder, row.manifest_sha256, 1, row.weights_digest, 0.1)
    assert keeper.collect()
    assert bench.folders() == ["b000-i000002.t0001"]
    assert bench.kept() == [2]


def test_a_full_disk_is_raised_and_nothing_is_in_flight_afterwards(bench: Bench) -> None:
    keeper = bench.keeper()
    keeper.attach(in_flight=True)
    bench.trainer.result = StorageFullError("full")
    with pytest.raises(StorageFullError):
        keeper.collect()
    assert keeper.collect() is False


def test_the_newest_and_the_first_are_kept(bench: Bench) -> None:
    for iteration in range(6):
        bench.commit(iteration)
        bench.checkpoint(iteration)
    assert bench.kept() == [0, 4, 5]
    assert bench.folders() == [f"b000-i{i:06d}.t0001" for i in (0, 4, 5)]
    states = {row.iteration: row.state for row in bench.ledger.records.own_checkpoints(bench.run)}
    assert states == {0: "kept", 1: "pruned", 2: "pruned", 3: "pruned", 4: "kept", 5: "kept"}


def test_a_checkpoint_after_the_last_commit_displaces_none(bench: Bench) -> None:
    for iteration in range(4):
        bench.commit(iteration)
        bench.checkpoint(iteration)
    bench.checkpoint(4)
    assert bench.kept() == [0, 2, 3, 4]
    bench.commit(4)
    bench.commit(5)
    bench.checkpoint(5)
    assert bench.kept() == [0, 4, 5]


def test_the_base_of_a_rollback_is_kept_and_the_abandoned_line_is_pruned(bench: Bench) -> None:
    for iteration in range(6):
        bench.commit(iteration)
        if iteration in (0, 3, 5):
            bench.checkpoint(iteration)
    bench.roll_back(4)
    for iteration in range(5, 9):
        bench.commit(iteration)
        bench.checkpoint(iteration)
    assert bench.kept() == [0, 3, 7, 8]
    assert [row.iteration for row in bench.ledger.records.own_checkpoints(bench.run) if row.state == "kept"] == [
        8,
        7,
        3,
        0,
    ]


def needed_spec() -> RunSpec:
    tree = SPEC.retention.model_copy(update={"experience": "needed"})
    return SPEC.model_copy(update={"retention": tree})


def iterations_on_disk(bench: Bench, branch: int = 0) -> list[int]:
    root = bench.folder / iteration_folder(branch, 0).parent
    return sorted({int(path.parent.name[1:]) for path in root.glob("i*/w*")})


def test_unneeded_experience_is_deleted_but_not_its_rows_and_telemetry(tmp_path: Path) -> None:
    bench = Bench(Home(tmp_path / "runs"), needed_spec())
    bench.commit(*range(9), sealed=True)
    for iteration in (0, 4, 6):
        bench.checkpoint(iteration)
    telemetry = bench.folder / iteration_folder(0, 2) / "telemetry.collect.json"
    telemetry.write_text("{}")
    (bench.folder / iteration_folder(0, 9) / "w00-s0000.t0001").mkdir(parents=True)  # a shard in progress
    assert prune_experience(bench.ledger, bench.fence, bench.folder, bench.spec) == [1, 2, 3, 4]
    assert iterations_on_disk(bench) == [5, 6, 7, 8, 9]
    assert telemetry.exists()
    assert len(bench.ledger.records.shards(bench.run, 0, 2)) == 2
    events = bench.ledger.events.of_kind(bench.run, PRUNED_EVENT)
    assert [(e.body["branch"], e.body["first"], e.body["last"]) for e in events] == [(0, 1, 4)]
    assert prune_experience(bench.ledger, bench.fence, bench.folder, bench.spec) == []
    bench.ledger.close()


def test_the_base_of_a_rollback_can_still_be_replayed(tmp_path: Path) -> None:
    bench = Bench(Home(tmp_path / "runs"), needed_spec())
    for iteration in range(6):
        bench.commit(iteration, sealed=True)
        if iteration in (0, 2):
            bench.checkpoint(iteration)
    bench.roll_back(4)
    for iteration in range(5, 9):
        bench.commit(iteration)
        bench.checkpoint(iteration)
    assert prune_experience(bench.ledger, bench.fence, bench.folder, bench.spec) == [1, 2, 5]
    assert iterations_on_disk(bench) == [3, 4]
    bench.ledger.close()


def test_all_experience_is_kept_by_default(bench: Bench) -> None:
    bench.commit(*range(6), sealed=True)
    for iteration in (0, 4, 5):
        bench.checkpoint(iteration)
    assert prune_experience(bench.ledger, bench.fence, bench.folder, bench.spec) == []
    assert iterations_on_disk(bench) == [1, 2, 3, 4, 5]
