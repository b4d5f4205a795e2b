"""A checkpoint that several ranks write together: complete or absent, whoever is late, failed or killed."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.scenarios import (
    FOLDER,
    IDENTITY,
    TENSORS,
    attempt,
    other_state,
    publish_shares,
    state_of,
    write,
    write_share,
)
from tests.storage import kills
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.checkpoints.publish import publish_checkpoint
from yatt_core.checkpoints.retention import sweep_checkpoints
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.checkpoints.writer import CheckpointWriter
from yatt_core.digests import file_sha256, weights_digest
from yatt_core.errors import DataError, InfrastructureError, StorageFullError
from yatt_core.manifests import load_manifest
from yatt_core.protocols.engines import FrozenState

NAME = "b000-i000010.t0001"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def published(folder: Path, name: str = "first") -> Path:
    publish_shares(folder, lambda word: None, name)
    return folder / FOLDER


def test_the_manifest_lists_the_files_of_all_ranks_with_digests_of_what_is_on_disk(tmp_path: Path) -> None:
    folder = published(tmp_path)
    manifest = load_manifest(folder, "checkpoint")
    weights = [f"weights/rank-0000{rank}-of-00002.safetensors" for rank in (0, 1)]
    indexes = [f"rank-0000{rank}-of-00002.index" for rank in (0, 1)]
    references = ["reference/" + name.partition("/")[2] for name in weights]
    assert sorted(manifest.files) == [*indexes, *references, "state.json", *weights]
    for name, entry in manifest.files.items():
        assert (entry.size, entry.sha256) == ((folder / name).stat().st_size, file_sha256(folder / name))
    assert manifest.fields == dataclasses.asdict(IDENTITY) | {"weights_digest": weights_digest(TENSORS)}
    for subfolder in ("weights", "reference"):
        files = open_tensors(folder, subfolder)
        for tensor, values in TENSORS.items():
            np.testing.assert_array_equal(files.read(tensor), values)
    assert names(tmp_path / "checkpoints") == [NAME]


def test_killed_at_every_step_a_checkpoint_of_two_ranks_is_complete_or_absent(tmp_path: Path) -> None:
    seen = set()
    for death in kills(publish_shares, tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        visible = (folder / FOLDER).exists()
        seen.add((len(acknowledged), visible))
        assert visible or "published" not in acknowledged
        before = (folder / FOLDER).stat().st_ino if visible else None
        published(folder, "second")
        verify_checkpoint(folder, FOLDER, load_manifest(folder / FOLDER, "checkpoint").sha256)
        if visible:
            assert (folder / FOLDER).stat().st_ino == before, "a complete checkpoint was written again"
        sweep_checkpoints(folder, [FOLDER])
        assert names(folder / "checkpoints") == [NAME]
    assert {(0, False), (1, False), (2, False), (2, True)} <= seen


def test_a_rank_killed_at_any_step_leaves_the_others_without_a_checkpoint(tmp_path: Path) -> None:
    for death in kills(write_share, tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        own = attempt(folder)
        own.write(state_of(0))
        if own.note(1).exists():
            own.publish(state_of(0), 0.0, threading.Event())
            verify_checkpoint(folder, FOLDER, load_manifest(folder / FOLDER, "checkpoint").sha256)
        else:
            assert not acknowledged
            with pytest.raises(InfrastructureError, match="share of rank 1 of 2"):
                own.publish(state_of(0), 0.0, threading.Event())
            assert names(folder / "checkpoints") == [], "the publishing rank removes the shares"
    assert death.step > 5


def test_the_publishing_rank_waits_for_a_late_one(tmp_path: Path) -> None:
    first = CheckpointWriter(tmp_path)
    second = CheckpointWriter(tmp_path)
    first.begin(FOLDER, "a", attempt(tmp_path).identity, lambda: state_of(0))
    assert first.wait(0.2) is None and not (tmp_path / FOLDER).exists()
    second.begin(FOLDER, "a", attempt(tmp_path).identity, lambda: state_of(1))
    receipt = first.wait(20)
    assert receipt is not None and second.wait(20) is None and not second.in_flight
    assert receipt.weights_digest == weights_digest(TENSORS)
    verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)


def test_a_rank_that_waits_in_vain_gives_up_when_the_next_checkpoint_begins(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.begin(FOLDER, "a", attempt(tmp_path).identity, lambda: state_of(0))
    writer.begin(FOLDER, "b", attempt(tmp_path).identity, lambda: state_of(0, ranks=1))
    receipt = writer.wait(20)
    assert receipt is not None
    assert sorted(load_manifest(tmp_path / FOLDER, "checkpoint").files)[-1] == "weights/rank-00000-of-00001.safetensors"
    assert names(tmp_path / "checkpoints") == [NAME]


def test_a_late_rank_of_an_earlier_attempt_changes_nothing(tmp_path: Path) -> None:
    late = attempt(tmp_path, "first")
    late.write(state_of(1, iteration=9))
    folder = published(tmp_path, "second")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    late.write(state_of(1, iteration=9))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert sweep_checkpoints(tmp_path, [FOLDER]) == [f"checkpoints/.{NAME}.first.shares"]


def test_a_late_attempt_does_not_replace_what_a_later_one_published(tmp_path: Path) -> None:
    late, latest = (
        dataclasses.replace(each, identity=dataclasses.replace(each.identity, attempt=number))
        for number, each in enumerate((attempt(tmp_path, "first"), attempt(tmp_path, "second")), 1)
    )
    for rank in (1, 0):
        late.write(other_state(rank))
        latest.write(state_of(rank))
    receipt = latest.publish(state_of(0), 0.0, threading.Event())
    with pytest.raises(InfrastructureError, match="attempt 1 is late"):
        late.publish(other_state(0), 0.0, threading.Event())
    verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)


def test_a_note_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    """Such as one of a driver with another term."""
    old = dataclasses.replace(attempt(tmp_path), identity=dataclasses.replace(attempt(tmp_path).identity, term=0))
    old.write(state_of(1))
    own = attempt(tmp_path)
    own.write(state_of(0))
    with pytest.raises(InfrastructureError, match="another checkpoint"):
        own.publish(state_of(0), 0.0, threading.Event())
    assert names(tmp_path / "checkpoints") == []


class Full(FrozenState):
    """The state of a rank whose disk is full."""

    def __call__(self, folder: Path) -> dict:
        super().__call__(folder)
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_of_any_rank_is_reported_as_such_and_leaves_nothing(tmp_path: Path, rank: int) -> None:
    both = attempt(tmp_path)
    state = state_of(rank)
    full = Full(state.rank, state.ranks, state.tensors, state.files)
    with pytest.raises(StorageFullError, match="No space left"):
        both.write(full)
    if rank == 1:
        both.write(state_of(0))
        with pytest.raises(StorageFullError, match=r"rank 1: .*No space left"):
            both.publish(state_of(0), 0.0, threading.Event())
    assert names(tmp_path / "checkpoints") == []


def test_shares_that_do_not_make_up_a_tensor_are_not_published(tmp_path: Path) -> None:
    both = attempt(tmp_path)
    state = state_of(1)
    lacking = {"weights": state.tensors["weights"], "reference": state.tensors["reference"][:0]}
    both.write(dataclasses.replace(state, tensors=lacking))
    both.write(state_of(0))
    with pytest.raises(InfrastructureError, match="parts of a have 6 of 15"):
        both.publish(state_of(0), 0.0, threading.Event())
    assert names(tmp_path / "checkpoints") == []


def test_readers_of_a_node_share_the_files_and_each_notices_its_own_damage(tmp_path: Path) -> None:
    folder = published(tmp_path)
    sha256 = load_manifest(folder, "checkpoint").sha256
    damaged = []
    for name in load_manifest(folder, "checkpoint").files:
        other = tmp_path / "copy"
        shutil.copytree(folder, other / FOLDER)
        data = bytearray((other / FOLDER / name).read_bytes())
        data[-1] ^= 1
        (other / FOLDER / name).write_bytes(data)
        noticed = []
        for number in range(3):
            try:
                verify_checkpoint(other, FOLDER, sha256, number, 3)
            except DataError:
                noticed.append(number)
        assert len(noticed) == 1, "each file is hashed by one reader"
        damaged += noticed
        shutil.rmtree(other)
    assert set(damaged) == {0, 1, 2}


def test_a_checkpoint_of_whole_files_is_read_as_before(tmp_path: Path) -> None:
    """As written before ranks wrote parts: one safetensors file in place of each subfolder."""
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, 20_000)
    verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)
    files = open_tensors(tmp_path / FOLDER, "weights")
    files.require_whole()
    assert files.shapes == {"weight": (4000,)}
    np.testing.assert_array_equal(files.read("weight"), np.arange(4000, dtype=np.float32))
    with pytest.raises(DataError, match="critic: is missing"):
        open_tensors(tmp_path / FOLDER, "critic")
