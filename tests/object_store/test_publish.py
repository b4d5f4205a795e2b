"""Publishing on the durable tier: a folder exists once its manifest does, however its publisher ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Barrier

import pytest

from tests.checkpoints.scenarios import FOLDER, IDENTITY, NEEDED, write
from tests.crash import deaths
from tests.object_store.scenarios import delete, publish, publish_on_both, store_for, tell_children
from tests.object_store.server import S3Server
from yatt_core import progress
from yatt_core.checkpoints.publish import publish_checkpoint
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.progress import seconds_since_progress
from yatt_core.storage import objects as objects_module
from yatt_core.storage import run_store
from yatt_core.storage.fetching import fetching, partial_of
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import ObjectRunStore

FILES = ["manifest.json", "optimizer/moments.bin", "schedule.json", "weights.safetensors"]


def stored(objects: ObjectStore, run: str, folder: str = FOLDER) -> dict[str, bytes | None]:
    prefix = f"{run}/{folder}/"
    return {name.removeprefix(prefix): objects.read(name) for name in objects.sizes(prefix)}


def local(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_manifest_is_sent_last_and_the_bytes_are_the_same(
    server: S3Server, objects: ObjectStore, run_folder: Path
) -> None:
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    written = [line.rpartition("/")[2].partition("?")[0] for line in server.requests if line.startswith("PUT")]
    assert sorted(written[:-1]) == ["moments.bin", "schedule.json", "weights.safetensors"]
    assert written[-1] == "manifest.json"
    assert stored(objects, run_folder.name) == local(run_folder / FOLDER)
    assert sorted(stored(objects, run_folder.name)) == FILES
    server.requests.clear()
    store.publish(FOLDER)
    assert not [line for line in server.requests if line.startswith("PUT")], "a published folder was sent again"


def test_killed_at_every_step_a_folder_is_complete_or_absent_and_a_retry_gives_the_same_bytes(
    server: S3Server, objects: ObjectStore, tmp_path: Path
) -> None:
    tell_children(tmp_path, objects.url, server.environment)
    halves = 0
    for death in deaths(publish, tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        store = store_for(folder)
        seen = store.folders("checkpoints")
        whole = seen.get(FOLDER, False)
        assert whole or not acknowledged, "acknowledged before it was on the store"
        halves += bool(seen) and not whole
        assert store.fetch(FOLDER) is whole, "a partial folder must not be fetched"
        publish_on_both(folder)
        assert store.folders("checkpoints") == {FOLDER: True}
        assert stored(objects, folder.name) == local(folder / FOLDER)
    assert halves > 2
    contents = {
        json.dumps({k: v.hex() for k, v in local(tmp_path / f"step-{n}" / FOLDER).items()})
        for n in range(1, death.step)
    }
    assert len(contents) == 1


@pytest.mark.verify
def test_a_deletion_killed_at_every_step_leaves_no_valid_partial_folder(
    server: S3Server, objects: ObjectStore, tmp_path: Path
) -> None:
    tell_children(tmp_path, objects.url, server.environment)
    for death in deaths(delete, tmp_path, publish_on_both):
        folder = death.folder
        receipt = death.prepared
        store = store_for(folder)
        if store.folders("checkpoints").get(FOLDER):
            store.verify(FOLDER, receipt.manifest_sha256)
        store.sweep("checkpoints", [], term=1)
        assert objects.sizes(f"{folder.name}/") == {}
    assert death.step > 4


def test_all_of_a_run_is_deleted_but_nothing_of_another_ledgers_run(
    server: S3Server, objects: ObjectStore, run_folder: Path
) -> None:
    store = ObjectRunStore(objects, run_folder)
    store.claim("this ledger")
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store.publish(FOLDER)
    objects.write(f"{run_folder.name}0/owner.json", b"a run whose name begins with this one's")
    store.remove_all("another ledger")
    assert store.folders("checkpoints") == {FOLDER: True}
    server.strikes.append((r"POST .*\?delete", lambda: server.refuse(403, "AccessDenied")))
    with pytest.raises(ConfigurationError):
        store.remove_all("this ledger")
    assert objects.read(f"{run_folder.name}/owner.json") is not None, "the claim is deleted last"
    store.remove_all("this ledger")
    store.remove_all("this ledger")
    assert list(objects.sizes("")) == [f"{run_folder.name}0/owner.json"]


def test_other_contents_are_unpublished_before_they_are_replaced(
    server: S3Server, objects: ObjectStore, run_folder: Path
) -> None:
    store = ObjectRunStore(objects, run_folder)
    objects.write(f"{run_folder.name}/{FOLDER}/manifest.json", b"another")
    objects.write(f"{run_folder.name}/{FOLDER}/planted.bin", b"x")
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    server.requests.clear()
    store.publish(FOLDER)
    changes = [line for line in server.requests if not line.startswith("GET")]
    assert changes[0].startswith("DELETE") and "manifest.json" in changes[0]
    assert sorted(stored(objects, run_folder.name)) == FILES


def test_a_lost_object_of_a_published_folder_is_sent_again(objects: ObjectStore, run_folder: Path) -> None:
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    objects.delete([f"{run_folder.name}/{FOLDER}/schedule.json"])
    store.publish(FOLDER)
    assert stored(objects, run_folder.name) == local(run_folder / FOLDER)


def test_an_unsealed_folder_is_not_published(objects: ObjectStore, run_folder: Path) -> None:
    (run_folder / "checkpoints/half").mkdir(parents=True)
    with pytest.raises(DataError, match="manifest"):
        ObjectRunStore(objects, run_folder).publish("checkpoints/half")
    assert objects.sizes("") == {}


def test_a_fetched_folder_is_the_published_one_and_replaces_a_damaged_one(
    objects: ObjectStore, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_latest", None)
    receipt = publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    (run_folder / FOLDER / "schedule.json").write_text("{}")
    (run_folder / FOLDER / "optimizer/planted").write_text("{}")
    assert store.fetch(FOLDER, "0" * 64) is False, "a folder with a manifest other than the ledger's is not fetched"
    assert store.fetch(FOLDER, receipt.manifest_sha256)
    assert seconds_since_progress() is not None, "arriving bytes are progress"
    verify_checkpoint(run_folder, FOLDER, receipt.manifest_sha256)
    assert [path.name for path in (run_folder / FOLDER).parent.iterdir()] == [Path(FOLDER).name]


@pytest.mark.parametrize("local_copy", ["absent", "damaged"])
def test_a_concurrent_fetch_waits_and_keeps_the_first_ones_result(
    objects: ObjectStore, run_folder: Path, monkeypatch: pytest.MonkeyPatch, local_copy: str
) -> None:
    receipt = publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    (run_folder / FOLDER / "schedule.json").write_text("{}")
    if local_copy == "absent":
        shutil.rmtree(run_folder / FOLDER)
    both = Barrier(2)
    download = ObjectStore.download
    downloads = list[int]()

    def meet_and_lock(folder: Path) -> AbstractContextManager[bool]:
        both.wait(30)
        return fetching(folder)

    def count(self: ObjectStore, files: Mapping[str, Path]) -> None:
        downloads.append(1)
        download(self, files)

    def fetch(_: int) -> int:
        assert store.fetch(FOLDER, receipt.manifest_sha256)
        verify_checkpoint(run_folder, FOLDER, receipt.manifest_sha256)
        return (run_folder / FOLDER).stat().st_ino

    monkeypatch.setattr(run_store, "fetching", meet_and_lock)
    monkeypatch.setattr(ObjectStore, "download", count)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch, range(2))
    assert first == second
    assert len(downloads) == 1
    assert [path.name for path in (run_folder / FOLDER).parent.iterdir()] == [Path(FOLDER).name]


def test_leftovers_of_a_killed_fetch_do_not_get_into_the_next_one(objects: ObjectStore, run_folder: Path) -> None:
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    published = local(run_folder / FOLDER)
    shutil.rmtree(run_folder / FOLDER)
    partial_of(run_folder / FOLDER).mkdir()
    (partial_of(run_folder / FOLDER) / "half").write_text("of a file")
    assert store.fetch(FOLDER)
    assert local(run_folder / FOLDER) == published
    assert [path.name for path in (run_folder / FOLDER).parent.iterdir()] == [Path(FOLDER).name]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_damage_on_the_store_is_reported(objects: ObjectStore, run_folder: Path, damage: str) -> None:
    receipt = publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    store.verify(FOLDER, receipt.manifest_sha256)
    name = f"{run_folder.name}/{FOLDER}/" + ("manifest.json" if damage == "manifest" else "schedule.json")
    data = bytearray(objects.read(name) or b"")
    data[3] ^= 1
    if damage == "remove":
        objects.delete([name])
    else:
        objects.write(name, bytes(data[:-1] if damage == "truncate" else data))
    with pytest.raises(DataError, match=name):
        store.verify(FOLDER, receipt.manifest_sha256)


def test_an_object_whose_name_leaves_the_folder_is_refused(objects: ObjectStore, run_folder: Path) -> None:
    publish_checkpoint(run_folder, FOLDER, IDENTITY, write, NEEDED)
    store = ObjectRunStore(objects, run_folder)
    store.publish(FOLDER)
    objects.write(f"{run_folder.name}/{FOLDER}/../../../escaped", b"x")
    with pytest.raises(DataError, match="outside"):
        store.fetch(FOLDER)
    assert not (run_folder.parent / "escaped").exists()


def test_an_interrupted_multipart_upload_is_invisible_and_its_space_is_freed(
    server: S3Server, objects: ObjectStore, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * (11 << 12)
    publish_checkpoint(
        run_folder, FOLDER, IDENTITY, lambda folder: (folder / "large.bin").write_bytes(data) and None, NEEDED
    )
    store = ObjectRunStore(objects, run_folder)
    system = objects._system
    monkeypatch.setattr(system, "_abort_mpu", lambda *_: _nothing())  # simulates a killed process
    monkeypatch.setattr(system, "_upload_file_part_concurrent", _cut_off)
    with pytest.raises(InfrastructureError):
        store.publish(FOLDER)
    monkeypatch.undo()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(objects_module, "PART_BYTES", 5 << 20)
    assert store.folders("checkpoints") == {}
    assert objects.abort_uploads("elsewhere/") == 0
    store.sweep("checkpoints", [], term=1, in_flight=True)
    assert len(system.list_multipart_uploads(objects.url.split("/")[2])) == 1, "a process may still be sending it"
    store.sweep("checkpoints", [], term=1)
    assert system.list_multipart_uploads(objects.url.split("/")[2]) == []
    store.publish(FOLDER)
    assert objects.read(f"{run_folder.name}/{FOLDER}/large.bin") == data
    assert objects.entry(f"{run_folder.name}/{FOLDER}/large.bin", len(data)).size == len(data)


async def _nothing() -> None:
    pass


async def _cut_off(*_: object, **__: object) -> None:
    raise ConnectionResetError("cut off")
