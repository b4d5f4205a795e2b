"""Work of writers on a disk that may lose power, and checks of the disk afterwards: for `tests/test_storage.py`.

A scenario reports each piece of work that is done. `check` gets the disk as the crash left it, and what had been
reported, and continues from there. It raises an error if reported work is lost, or incomplete work passes as complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.checkpoints.scenarios import FOLDER, IDENTITY, NEEDED, publish, publish_shares, write
from tests.experience.scenarios import BATCHES, KEY, SAMPLES, make_shard, prepare, prepared_ranks, sealed_folders
from yatt_core import durable
from yatt_core.checkpoints.publish import publish_checkpoint
from yatt_core.checkpoints.retention import delete_checkpoint, sweep_checkpoints
from yatt_core.checkpoints.unrecorded import find_unrecorded
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.experience.prepared import PREPARED_KIND, prepared_folder, read_prepared, write_prepared
from yatt_core.experience.shard_log import ShardLog, sweep, verify_shard
from yatt_core.experience.table import group_digests
from yatt_core.manifests import MANIFEST, load_manifest

Tell = Callable[[str], None]


@dataclass(frozen=True)
class StorageScenario:
    """Work of a writer.

    run: what is done on a fresh disk.
    again: what the next process does after a kill.
    check: what must hold after a crash.
    """

    name: str
    run: Callable[[Path, Tell], None]
    again: Callable[[Path, Tell], None]
    check: Callable[[Path, tuple[str, ...]], None]


def _files(folder: Path, tell: Tell) -> None:
    durable.make_folder(folder / "a" / "b")
    tell("folder")
    durable.write_file(folder / "a" / "b" / "file", b"first")
    tell("first")
    durable.write_file(folder / "a" / "b" / "file", b"second")
    tell("second")


def _check_files(folder: Path, told: tuple[str, ...]) -> None:
    """Checks that the file has the contents reported last, or those being written in the crash.

    Both may come from a second process that started over.
    """
    path = folder / "a" / "b" / "file"
    last = next((word for word in reversed(told) if word != "folder"), "nothing")
    allowed = {"first": {b"first", b"second"}, "second": {b"second", b"first"}, "nothing": {None, b"first"}}
    assert "folder" not in told or path.parent.is_dir()
    assert (path.read_bytes() if path.exists() else None) in allowed[last]
    durable.make_folder(path.parent)
    durable.write_file(path, b"on")


def _shard(term: int) -> Callable[[Path, Tell], None]:
    """Returns one holder's work; responses that it finds count as reported, because its scores depend on them."""

    def make(folder: Path, tell: Tell) -> None:
        if not sealed_folders(folder):
            log = ShardLog(folder, KEY, term)
            for number in range(BATCHES):
                if log.responses(number) is not None:
                    tell(f"responses-{number}")
        if make_shard(folder, term, tell).adopted:
            tell("sealed")

    return make


def _check_shard(folder: Path, told: tuple[str, ...]) -> None:
    redone: list[str] = []
    receipt = make_shard(folder, 9, redone.append)
    assert not set(redone) & set(told), f"{redone} was done again, although {told} had been told"
    assert redone == [] or "sealed" not in told
    assert receipt.group_digests == group_digests(SAMPLES)
    verify_shard(folder, receipt.folder, receipt.manifest_sha256)
    sweep(folder, KEY.branch, KEY.iteration, [receipt.folder])
    left = {path.name for path in (folder / receipt.folder).rglob("*")}
    assert left == {"manifest.json", "samples.parquet"}


def _publish_again(folder: Path, tell: Tell) -> None:
    """Takes over as a driver: adopts a complete checkpoint if there is one, otherwise publishes it again."""
    if not find_unrecorded(folder, []):
        publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    tell("published")


def _republish(folder: Path, tell: Tell) -> None:
    """Publishes the same checkpoint again, as a trainer that is asked twice."""
    publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    tell("published")


def _check_checkpoint(folder: Path, told: tuple[str, ...]) -> None:
    found = find_unrecorded(folder, [])
    for _, receipt in found:
        verify_checkpoint(folder, receipt.folder, receipt.manifest_sha256)
    assert found or "published" not in told
    receipt = publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    verify_checkpoint(folder, FOLDER, receipt.manifest_sha256)
    sweep_checkpoints(folder, [FOLDER])
    assert [path.name for path in (folder / FOLDER).parent.iterdir()] == [Path(FOLDER).name]


def _share_again(folder: Path, tell: Tell) -> None:
    """Writes the shares of both ranks again, in another attempt."""
    publish_shares(folder, tell, "second")


def _check_shares(folder: Path, told: tuple[str, ...]) -> None:
    found = find_unrecorded(folder, [])
    for _, receipt in found:
        verify_checkpoint(folder, receipt.folder, receipt.manifest_sha256)
    assert found or "published" not in told
    publish_shares(folder, lambda word: None, "third")
    verify_checkpoint(folder, FOLDER, load_manifest(folder / FOLDER, "checkpoint").sha256)
    sweep_checkpoints(folder, [FOLDER])
    assert [path.name for path in (folder / FOLDER).parent.iterdir()] == [Path(FOLDER).name]


def _delete(folder: Path, tell: Tell) -> None:
    publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    tell("published")
    tell("deleting")
    delete_checkpoint(folder, FOLDER)
    tell("deleted")


def _check_deletion(folder: Path, told: tuple[str, ...]) -> None:
    visible = (folder / FOLDER).exists()
    assert not (visible and "deleted" in told)
    if visible:
        verify_checkpoint(folder, FOLDER, load_manifest(folder / FOLDER, "checkpoint").sha256)
    else:
        assert "published" not in told or "deleting" in told
    sweep_checkpoints(folder, [])
    assert not (folder / FOLDER).exists()


def _delete_again(folder: Path, tell: Tell) -> None:
    tell("deleting")
    delete_checkpoint(folder, FOLDER)
    if (folder / FOLDER).parent.exists():
        durable.sync_folder((folder / FOLDER).parent)
    tell("deleted")


def _prepare_again(folder: Path, tell: Tell) -> None:
    write_prepared(folder, KEY, 1, prepared_ranks())
    tell("prepared")


def _check_prepared(folder: Path, told: tuple[str, ...]) -> None:
    place = prepared_folder(KEY.branch, KEY.iteration, 1)
    assert (folder / place / MANIFEST).exists() or "prepared" not in told
    if "prepared" in told:
        manifest = load_manifest(folder / place, PREPARED_KIND)
        files = {name: entry.sha256 for name, entry in manifest.files.items()}
        assert np.array_equal(read_prepared(folder, place, files).advantages, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert len(read_prepared(folder, *write_prepared(folder, KEY, 2, prepared_ranks())).ordinals) == 6


SCENARIOS = (
    StorageScenario("files", _files, _files, _check_files),
    StorageScenario("shard", _shard(1), _shard(2), _check_shard),
    StorageScenario("shard resumed in its term", _shard(1), _shard(1), _check_shard),
    StorageScenario("checkpoint adopted", publish, _publish_again, _check_checkpoint),
    StorageScenario("checkpoint published again", publish, _republish, _check_checkpoint),
    StorageScenario("checkpoint of two ranks", publish_shares, _share_again, _check_shares),
    StorageScenario("deletion", _delete, _delete_again, _check_deletion),
    StorageScenario("prepared", prepare, _prepare_again, _check_prepared),
)
