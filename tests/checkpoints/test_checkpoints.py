"""Checkpoints: published atomically, verified before use, kept and deleted by rule."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file

from tests.checkpoints.scenarios import FOLDER, IDENTITY, NEEDED, publish, write
from tests.storage import kills
from yatt_core.checkpoints import publish as publish_module
from yatt_core.checkpoints.publish import publish_checkpoint
from yatt_core.checkpoints.retention import checkpoints_to_keep, delete_checkpoint, sweep_checkpoints
from yatt_core.checkpoints.unrecorded import find_unrecorded
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.checkpoints.writer import CheckpointWriter
from yatt_core.errors import DataError, InfrastructureError, StorageFullError
from yatt_core.keys import checkpoint_folder
from yatt_core.protocols.engines import FrozenState
from yatt_core.storage.fetching import fetching, partial_of

FILES = ["optimizer/moments.bin", "schedule.json", "weights.safetensors"]
Usage = namedtuple("Usage", "total used free")


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_published_and_verified(tmp_path):
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    manifest = verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)
    assert sorted(manifest.files) == FILES
    assert dict(manifest.fields) == dataclasses.asdict(IDENTITY)
    assert receipt.bytes == sum((tmp_path / FOLDER / name).stat().st_size for name in FILES)
    assert (receipt.branch, receipt.iteration, receipt.term) == (0, 10, 1)
    assert receipt.weights_digest == IDENTITY.weights_digest
    assert load_file(tmp_path / FOLDER / "weights.safetensors")["weight"][-1] == np.float32(3999)
    assert names((tmp_path / FOLDER).parent) == ["b000-i000010.t0001"]


def test_everything_is_synced_before_the_final_name(tmp_path, monkeypatch):
    synced: list[str] = []
    fsync = os.fsync
    move = publish_module.durable.move_folder

    def watched(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def moved(source, target) -> None:
        before = set(synced)
        assert {"moments.bin", "schedule.json", "weights.safetensors", "optimizer", source.name} <= before
        synced.clear()
        move(source, target)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(publish_module.durable, "move_folder", moved)
    publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    assert synced == ["checkpoints"]


def published(folder):
    return publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)


def test_killed_at_every_step_a_checkpoint_is_complete_or_absent(tmp_path):
    for death in kills(publish, tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        visible = (folder / FOLDER).exists()
        assert visible or not acknowledged
        before = (folder / FOLDER).stat().st_ino if visible else None
        receipt = published(folder)
        verify_checkpoint(folder, FOLDER, receipt.manifest_sha256)
        if visible:
            assert (folder / FOLDER).stat().st_ino == before, "a complete checkpoint was written again"
        sweep_checkpoints(folder, [FOLDER])
        assert names((folder / FOLDER).parent) == ["b000-i000010.t0001"]
    assert death.step > 12


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_damage_is_reported_before_anything_is_loaded(tmp_path, name, damage):
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    path = tmp_path / FOLDER / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flip" else data[:-1])
    if damage == "remove":
        path.unlink()
    with pytest.raises(DataError, match=name):
        verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)


def test_a_file_missing_from_the_manifest_is_refused(tmp_path):
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    (tmp_path / FOLDER / "optimizer" / "planted.pkl").write_bytes(b"x")
    with pytest.raises(DataError, match=r"planted\.pkl"):
        verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)


def test_a_link_is_refused(tmp_path):
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    (tmp_path / FOLDER / "link").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="link"):
        verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)


def test_damaged_remains_of_an_earlier_attempt_are_replaced(tmp_path):
    publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    (tmp_path / FOLDER / "schedule.json").write_text("{}")
    receipt = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256)
    assert names((tmp_path / FOLDER).parent) == ["b000-i000010.t0001"]


def test_other_tensors_replace_those_of_the_same_name(tmp_path):
    old = publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, NEEDED)
    other = dataclasses.replace(IDENTITY, weights_digest="4" * 64)
    assert publish_checkpoint(tmp_path, FOLDER, other, write, NEEDED).manifest_sha256 != old.manifest_sha256


def test_insufficient_disk_space_is_reported_with_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 20_000_000))
    with pytest.raises(InfrastructureError, match=r"5000000 bytes .* 20000000 are free"):
        publish_checkpoint(tmp_path, FOLDER, IDENTITY, write, 5_000_000)
    assert names(tmp_path / "checkpoints") == []


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("No space left"), RuntimeError("No space left")]
)
def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path, error):
    def fill(folder) -> None:
        write(folder)
        raise error

    with pytest.raises(InfrastructureError, match=r"No space left.* 20000 bytes, \d+ are free"):
        publish_checkpoint(tmp_path, FOLDER, IDENTITY, fill, NEEDED)
    assert names(tmp_path / "checkpoints") == []


def test_a_writer_that_writes_nothing_publishes_nothing(tmp_path):
    with pytest.raises(DataError, match=r"i000010\.t0001.*\[\]$"):
        publish_checkpoint(tmp_path, FOLDER, IDENTITY, lambda folder: None, 0)
    assert names(tmp_path / "checkpoints") == []


class Frozen(FrozenState):
    """The state of a single rank, with a writer in place of tensors."""

    def __init__(self, write) -> None:
        super().__init__(0, 1, {}, {"state": b"state"}, "3" * 64)
        object.__setattr__(self, "write", write)

    def __call__(self, folder):
        self.write(folder)
        return super().__call__(folder)


def frozen(writer):
    return lambda: Frozen(writer)


def test_the_background_writer_returns_each_receipt_once(tmp_path):
    writer = CheckpointWriter(tmp_path)
    gate = threading.Event()
    assert writer.poll() is None
    writer.begin(FOLDER, "a", IDENTITY, frozen(lambda folder: gate.wait(10)))
    assert writer.poll() is None
    assert writer.wait(0.01) is None
    gate.set()
    receipt = writer.wait(10)
    assert (receipt.folder, receipt.weights_digest) == (FOLDER, "3" * 64)
    assert verify_checkpoint(tmp_path, FOLDER, receipt.manifest_sha256).files.keys() == {"state"}
    assert writer.poll() is None
    assert writer.wait(0.01) is None


def test_a_second_checkpoint_waits_for_the_first(tmp_path):
    writer = CheckpointWriter(tmp_path)
    running = []
    most = []

    def counted(folder) -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    for iteration in (10, 20, 30):
        identity = dataclasses.replace(IDENTITY, iteration=iteration)
        writer.begin(str(checkpoint_folder(0, iteration, 1)), str(iteration), identity, frozen(counted))
        assert len(most) >= iteration // 10 - 1, "begin must wait for the checkpoint before"
    assert writer.wait(10).iteration == 30
    assert most == [1, 1, 1]
    assert len(names(tmp_path / "checkpoints")) == 3


def test_a_failed_checkpoint_raises_once_and_the_next_succeeds(tmp_path, caplog):
    writer = CheckpointWriter(tmp_path)

    def broken(folder) -> None:
        raise OSError(28, "No space left on device")

    writer.begin(FOLDER, "a", IDENTITY, frozen(broken))
    with pytest.raises(StorageFullError, match="No space left"):
        writer.wait(10)
    writer.begin(FOLDER, "b", IDENTITY, frozen(broken))
    writer.begin(FOLDER, "c", IDENTITY, frozen(lambda folder: None))
    assert "No space left" in caplog.text, "nobody has asked for the second one's result"
    assert writer.wait(10).folder == FOLDER
    assert names(tmp_path / "checkpoints") == ["b000-i000010.t0001"]


@given(st.sets(st.integers(0, 40)), st.integers(1, 5))
def test_the_first_and_the_newest_are_kept(iterations, keep):
    kept = checkpoints_to_keep(iterations, keep)
    assert kept <= iterations
    assert iterations & {0} <= kept
    newest = sorted(iterations)[-keep:]
    assert set(newest) <= kept
    assert kept <= {0, *newest}


def test_deletion_killed_at_every_step_leaves_no_partial_checkpoint_under_the_name(tmp_path):
    for death in kills(delete, tmp_path, published):
        folder = death.folder
        receipt = death.prepared
        if (folder / FOLDER).exists():
            verify_checkpoint(folder, FOLDER, receipt.manifest_sha256)
        sweep_checkpoints(folder, [])
        assert names(folder / "checkpoints") == []
    assert death.step > 1
    delete_checkpoint(tmp_path, FOLDER)


def delete(folder, tell) -> None:
    delete_checkpoint(folder, FOLDER)
    tell("deleted")


@pytest.mark.parametrize("in_flight", [False, True])
def test_sweep_keeps_listed_and_possibly_in_flight_checkpoints(tmp_path, in_flight):
    for iteration in (10, 20):
        identity = dataclasses.replace(IDENTITY, iteration=iteration)
        publish_checkpoint(tmp_path, str(checkpoint_folder(0, iteration, 1)), identity, write, NEEDED)
    root = tmp_path / "checkpoints"
    for name in (".b000-i000030.t0001.partial", ".b000-i000010.t0001.7.trash"):
        (root / name).mkdir()
    removed = sweep_checkpoints(tmp_path, ["checkpoints/b000-i000020.t0001"], in_flight)
    left = [".b000-i000030.t0001.partial"] if in_flight else []
    assert names(root) == [*left, "b000-i000020.t0001"]
    assert len(removed) == 3 - len(left)


def test_sweep_leaves_a_checkpoint_that_is_being_fetched(tmp_path):
    partial = partial_of(tmp_path / FOLDER)
    partial.mkdir(parents=True)
    with fetching(tmp_path):
        assert sweep_checkpoints(tmp_path, []) == []
        assert partial.exists()
    assert sweep_checkpoints(tmp_path, []) == [str(partial.relative_to(tmp_path))]
    assert not partial.exists()


def test_unrecorded_checkpoints_are_found_and_damaged_ones_reported(tmp_path, caplog):
    for iteration in (10, 20, 30):
        identity = dataclasses.replace(IDENTITY, iteration=iteration)
        publish_checkpoint(tmp_path, str(checkpoint_folder(0, iteration, 1)), identity, write, NEEDED)
    (tmp_path / "checkpoints/b000-i000030.t0001/schedule.json").write_text("{}")
    shutil.copytree(tmp_path / "checkpoints/b000-i000010.t0001", tmp_path / "checkpoints/b000-i000040.t0001")
    found = find_unrecorded(tmp_path, ["checkpoints/b000-i000010.t0001"])
    assert [(identity.iteration, receipt.folder) for identity, receipt in found] == [
        (20, "checkpoints/b000-i000020.t0001")
    ]
    assert (
        found[0][1].manifest_sha256
        == verify_checkpoint(tmp_path, found[0][1].folder, found[0][1].manifest_sha256).sha256
    )
    assert "schedule.json" in caplog.text
    assert "b000-i000040.t0001: its manifest" in caplog.text and "CheckpointIdentity(" in caplog.text
