"""Nodes with disks of their own: inputs fetched once a node, shards of others, checkpoints whose shares meet on the store."""

from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from tests.checkpoints.scenarios import FOLDER, IDENTITY, TENSORS, attempt, other_state, state_of
from tests.collection.local import collect, spec_with
from tests.engines.train.support import make_model_folder
from tests.experience.scenarios import KEY
from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec
from tests.object_store.server import S3Server
from yatt_core.actors.leftovers import CommittedIteration, Leftovers
from yatt_core.checkpoints.needed import bring_index
from yatt_core.checkpoints.retention import sweep_checkpoints
from yatt_core.checkpoints.spread import SpreadAttempt, bring_checkpoint
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.digests import weights_digest
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.batch import load_table
from yatt_core.experience.shard_log import ShardLog
from yatt_core.input_building.arriving import receive_inputs
from yatt_core.input_building.given_folders import bring_folders, lacking_folders, send_folders, senders
from yatt_core.input_building.settling import settle_inputs
from yatt_core.keys import shard_folder
from yatt_core.models.model_folder import fingerprint
from yatt_core.protocols.receipts import ShardRef
from yatt_core.storage.lacking import fetch_lacking
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import NoStore, ObjectRunStore

RUN = "toy-1"


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Returns the run's folder as three nodes have it."""
    folders = [tmp_path / name / RUN for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def requests(server: S3Server, method: str, part: str) -> list[str]:
    return [line for line in server.requests if line.startswith(method) and part in line]


def test_processes_of_a_node_fetch_the_inputs_once(server: S3Server, objects: ObjectStore, nodes: list[Path]) -> None:
    spec = run_spec(SPELL, **VIRTUAL)
    receipt = settle_inputs(spec, nodes[0], ObjectRunStore(objects, nodes[0]))
    server.requests.clear()
    together = Barrier(3)

    def receive() -> None:
        together.wait(30)
        receive_inputs(nodes[1], ObjectRunStore(ObjectStore(objects.url), nodes[1]), receipt.manifest_sha256)

    with ThreadPoolExecutor(3) as processes:
        for each in [processes.submit(receive) for _ in range(3)]:
            each.result(60)
    assert len(requests(server, "GET", "train.parquet")) == 1
    for path in (nodes[0] / "inputs").rglob("*.parquet"):
        assert (nodes[1] / path.relative_to(nodes[0])).read_bytes() == path.read_bytes()


def test_inputs_that_arrive_damaged_or_are_missing_are_refused(objects: ObjectStore, nodes: list[Path]) -> None:
    receipt = settle_inputs(run_spec(SPELL, **VIRTUAL), nodes[0], ObjectRunStore(objects, nodes[0]))
    with pytest.raises(InfrastructureError, match="inputs"):
        receive_inputs(nodes[1], NoStore(), receipt.manifest_sha256)
    objects.write(f"{RUN}/inputs/train.parquet", b"damaged")
    with pytest.raises(DataError, match=r"train\.parquet"):
        receive_inputs(nodes[1], ObjectRunStore(objects, nodes[1]), receipt.manifest_sha256)
    assert not (nodes[1] / "inputs").exists()


def test_inputs_of_an_earlier_run_of_the_name_are_replaced(objects: ObjectStore, nodes: list[Path]) -> None:
    settle_inputs(run_spec(SPELL, **VIRTUAL, seed=1), nodes[1], NoStore())
    receipt = settle_inputs(run_spec(SPELL, **VIRTUAL), nodes[0], ObjectRunStore(objects, nodes[0]))
    receive_inputs(nodes[1], ObjectRunStore(objects, nodes[1]), receipt.manifest_sha256)
    manifests = [(node / "inputs" / "manifest.json").read_bytes() for node in nodes[:2]]
    assert manifests[0] == manifests[1]


def test_a_node_fetches_a_model_that_it_lacks_and_refuses_one_with_other_contents(
    server: S3Server, objects: ObjectStore, nodes: list[Path], tmp_path: Path
) -> None:
    model = make_model_folder(tmp_path / "models" / "judge")
    place = str(nodes[0])
    (model / "tokenizer.json").write_text("{}")
    spec = run_spec(SPELL, **VIRTUAL, storage={"url": objects.url}).model_dump_json()
    contents = {path.name: path.read_bytes() for path in model.iterdir()}
    folders = {str(model): fingerprint(model)}
    assert lacking_folders(folders) == []
    send_folders(spec, place, folders)
    server.requests.clear()
    send_folders(spec, place, folders)
    assert not requests(server, "PUT", "models/"), "it was sent before"
    shutil.rmtree(model.parent)
    assert lacking_folders(folders) == [str(model)]
    bring_folders(spec, place, folders)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == contents
    assert lacking_folders(folders) == []
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        lacking_folders(folders)
    shutil.rmtree(model)
    (name,) = (name for name in objects.sizes(f"{RUN}/models/") if name.endswith(".safetensors"))
    objects.write(name, b"damaged")
    with pytest.raises(DataError, match="safetensors"):
        bring_folders(spec, place, folders)
    assert not model.exists()


def test_a_node_that_has_a_model_sends_it_for_those_that_lack_it() -> None:
    assert senders({"a": [], "b": []}) == {}
    assert senders({"a": ["/m"], "b": ["/n"], "c": ["/m", "/n"]}) == {"a": ["/n"], "b": ["/m"]}
    with pytest.raises(ConfigurationError, match="/m: no node"):
        senders({"a": ["/m"], "b": ["/m"]})


def spread(objects: ObjectStore, node: Path) -> SpreadAttempt:
    identity = dataclasses.replace(IDENTITY, weights_digest="")
    return SpreadAttempt(node, FOLDER, "first", identity, ObjectRunStore(objects, node))


def test_shares_of_two_disks_become_one_checkpoint(server: S3Server, objects: ObjectStore, nodes: list[Path]) -> None:
    first = spread(objects, nodes[0])
    second = spread(objects, nodes[1])
    second.write(state_of(1))
    first.write(state_of(0))
    receipt = first.publish(state_of(0), 0.0, Event())
    assert receipt.weights_digest == weights_digest(TENSORS)
    stored = [line.rpartition("/")[2].partition("?")[0] for line in requests(server, "PUT", FOLDER)]
    assert stored[-1] == "manifest.json"
    assert not [name for name in objects.sizes(f"{RUN}/checkpoints/") if FOLDER not in name], "the notes are deleted"
    together = attempt(nodes[2])
    for rank in (1, 0):
        together.write(state_of(rank))
    same = together.publish(state_of(0), 0.0, Event())
    assert receipt.weights_digest == same.weights_digest
    shutil.rmtree(nodes[2])
    nodes[2].mkdir()
    for node, fetched in zip(nodes, (2, 4, 7), strict=True):
        server.requests.clear()
        bring_checkpoint(ObjectRunStore(objects, node), node, FOLDER, receipt.manifest_sha256, renew=False)
        verify_checkpoint(node, FOLDER, receipt.manifest_sha256)
        assert len(requests(server, "GET", "rank-")) + len(requests(server, "GET", "state.json")) == fetched
        bring_checkpoint(ObjectRunStore(objects, node), node, FOLDER, receipt.manifest_sha256, renew=False)


def test_a_damaged_file_alone_is_fetched_again(server: S3Server, objects: ObjectStore, nodes: list[Path]) -> None:
    first = spread(objects, nodes[0])
    second = spread(objects, nodes[1])
    for rank, each in ((1, second), (0, first)):
        each.write(state_of(rank))
    receipt = first.publish(state_of(0), 0.0, Event())
    store = ObjectRunStore(objects, nodes[1])
    bring_checkpoint(store, nodes[1], FOLDER, receipt.manifest_sha256, renew=False)
    file = nodes[1] / FOLDER / "weights" / "rank-00000-of-00002.a0.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    bring_checkpoint(store, nodes[1], FOLDER, receipt.manifest_sha256, renew=False)
    with pytest.raises(DataError, match=file.name):
        verify_checkpoint(nodes[1], FOLDER, receipt.manifest_sha256)
    server.requests.clear()
    bring_checkpoint(store, nodes[1], FOLDER, receipt.manifest_sha256, renew=True)
    verify_checkpoint(nodes[1], FOLDER, receipt.manifest_sha256)
    assert len(requests(server, "GET", "rank-")) == 1


def test_a_share_that_is_missing_or_fails_leaves_no_checkpoint(objects: ObjectStore, nodes: list[Path]) -> None:
    first = spread(objects, nodes[0])
    second = spread(objects, nodes[1])
    first.write(state_of(0))
    with pytest.raises(InfrastructureError, match="share of rank 1 of 2 is missing"):
        first.publish(state_of(0), 0.0, Event())
    first.write(state_of(0))
    second._tell_failure(1, InfrastructureError("its disk failed"))
    with pytest.raises(InfrastructureError, match="rank 1: its disk failed"):
        first.publish(state_of(0), 0.0, Event())
    store = ObjectRunStore(objects, nodes[0])
    assert not store.fetch(FOLDER)
    assert sweep_checkpoints(nodes[0], [], in_flight=True) == []
    assert sweep_checkpoints(nodes[0], []) == [FOLDER]


def numbered(objects: ObjectStore, node: Path, number: int) -> SpreadAttempt:
    identity = dataclasses.replace(IDENTITY, weights_digest="", attempt=number)
    return SpreadAttempt(node, FOLDER, f"{number:06}", identity, ObjectRunStore(objects, node))


def test_a_lost_rank_that_goes_on_changes_nothing_of_a_later_attempt(
    server: S3Server, objects: ObjectStore, nodes: list[Path]
) -> None:
    lost = [numbered(objects, node, 1) for node in nodes[:2]]
    store = ObjectRunStore(objects, nodes[2])
    lost[0].write(other_state(0))
    again = [numbered(objects, node, 2) for node in nodes[:2]]
    for rank in (1, 0):
        again[rank].write(state_of(rank))
    receipt = again[0].publish(state_of(0), 0.0, Event())
    lost[1].write(other_state(1))
    store.verify(FOLDER, receipt.manifest_sha256)
    with pytest.raises(InfrastructureError, match="attempt 1 is late"):
        lost[0].publish(other_state(0), 0.0, Event())
    store.verify(FOLDER, receipt.manifest_sha256)
    bring_checkpoint(store, nodes[2], FOLDER, receipt.manifest_sha256, renew=False)
    verify_checkpoint(nodes[2], FOLDER, receipt.manifest_sha256)
    place = bring_index(ObjectRunStore(objects, nodes[1]), nodes[1], FOLDER, receipt.manifest_sha256)
    assert place is not None and not list(place.rglob("*.a1.*"))


@pytest.mark.parametrize("same", [True, False])
def test_of_a_lost_attempt_that_published_the_same_tensors_are_kept_and_others_replaced(
    objects: ObjectStore, nodes: list[Path], same: bool
) -> None:
    lost, again = ([numbered(objects, node, number) for node in nodes[:2]] for number in (1, 2))
    for rank in (1, 0):
        lost[rank].write(state_of(rank) if same else other_state(rank))
    before = lost[0].publish(state_of(0), 0.0, Event())
    for rank in (1, 0):
        again[rank].write(state_of(rank))
    receipt = again[0].publish(state_of(0), 0.0, Event())
    assert (receipt.manifest_sha256 == before.manifest_sha256) is same
    assert receipt.weights_digest == weights_digest(TENSORS)
    ObjectRunStore(objects, nodes[2]).verify(FOLDER, receipt.manifest_sha256)


def test_shards_that_a_lost_node_had_sealed_are_not_made_again(objects: ObjectStore, nodes: list[Path]) -> None:
    spec = spec_with()
    made, _ = collect(nodes[0], spec, store=ObjectRunStore(objects, nodes[0]))
    shutil.rmtree(nodes[0])
    adopted, _ = collect(nodes[1], spec, term=2, store=ObjectRunStore(objects, nodes[1]))
    assert all(receipt.adopted for receipt in adopted)
    assert [receipt.group_digests for receipt in adopted] == [receipt.group_digests for receipt in made]
    fetch_lacking(ObjectRunStore(objects, nodes[2]), nodes[2], made)
    samples = [load_table(node, [ShardRef(r.folder, r.manifest_sha256) for r in made]) for node in nodes[1:]]
    assert samples[0].equals(samples[1])


def test_a_node_deletes_what_the_driver_says_and_nothing_else(nodes: list[Path]) -> None:
    made, _ = collect(nodes[0], spec_with())
    kept = made[0].folder
    gone = made[1].folder
    attempt(nodes[0]).write(state_of(1))
    Leftovers(committed=CommittedIteration(0, 1, (kept,))).remove(nodes[0])
    assert (nodes[0] / kept).exists() and not (nodes[0] / gone).exists()
    Leftovers(kept_checkpoints=(), in_flight=True).remove(nodes[0])
    assert list((nodes[0] / "checkpoints").iterdir())
    Leftovers(pruned=((0, 1),), kept_checkpoints=()).remove(nodes[0])
    assert not (nodes[0] / kept).exists() and not list((nodes[0] / "checkpoints").iterdir())


def test_writers_on_other_disks_never_have_the_same_folder(nodes: list[Path]) -> None:
    logs = [ShardLog(node, KEY, 1, writers=number) for number, node in enumerate(nodes)]
    folders = [str(log._own_folder().relative_to(node)) for log, node in zip(logs, nodes, strict=True)]
    assert folders == [str(shard_folder(KEY, 1, number)) for number in range(3)]
