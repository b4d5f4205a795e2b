"""The driver on two tiers: rows follow the durable tier, missing files are fetched from it, and both are pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.branching.branches import fork, revise
from flows.branching.restore_points import RestorePoints
from flows.branching.spec_changes import PastSpecs
from flows.files.retention import prune_experience
from flows.files.storage import claim_store, fetch_sealed, whole_shards
from flows.reports.audit import verify_run
from flows.run.home import Home
from flows.run.results import run_results
from ops.queries.rollouts import rollouts
from ops.queries.sample_filters import Selection
from ops.terminal.experience import fetch_iteration
from tests.checkpoints.bench import Bench
from tests.collection.local import collect, spec_with
from tests.object_store.server import S3Server
from tests.ops.audited import make_sound_run
from tests.ops.seeding import toy_spec
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.checkpoints.writer import CheckpointWriter
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.shard_log import find_sealed
from yatt_core.input_building.settling import settle_inputs
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import WorkKey, iteration_folder
from yatt_core.manifests import MANIFEST
from yatt_core.protocols.engines import FrozenState
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.storage import StorageSpec
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import ObjectRunStore, RunStore, open_store

CHECKPOINTS = "checkpoints"


def stored_spec(url: str, **changes: object) -> RunSpec:
    """Returns the spec of a small run with a durable tier."""
    return toy_spec(100).model_copy(update={"storage": StorageSpec(url=url), **changes})


@pytest.fixture
def bench(tmp_path: Path, url: str) -> Iterator[Bench]:
    made = Bench(Home(tmp_path / "runs"), stored_spec(url))
    yield made
    made.ledger.close()


@pytest.fixture
def store(bench: Bench) -> RunStore:
    return open_store(bench.spec, bench.folder)


def publish_shards(bench: Bench, store: RunStore) -> None:
    """Publishes all shards, as controllers do before they report them."""
    for path in sorted(bench.folder.glob("experience/*/*/w*")):
        store.publish(str(path.relative_to(bench.folder)))


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_receipt_waits_for_the_store_and_a_refusal_is_raised_instead(
    server: S3Server, bench: Bench, store: RunStore
) -> None:
    writer = CheckpointWriter(bench.folder, store)
    folder = "checkpoints/b000-i000001.t0001"
    identity = CheckpointIdentity(bench.run, 0, 1, 1, "s", "")

    def freeze() -> FrozenState:
        return FrozenState(0, 1, {}, {"state": b"tensors"}, "w")

    server.refuse(403, "AccessDenied", 9)
    writer.begin(folder, "first", identity, freeze)
    with pytest.raises(ConfigurationError):
        writer.wait(30)
    assert (bench.folder / folder).exists(), "the checkpoint is on the local tier"
    server.refusals.clear()
    writer.begin(folder, "second", identity, freeze)
    receipt = writer.wait(30)
    assert receipt is not None and store.folders(CHECKPOINTS) == {folder: True}
    store.verify(folder, receipt.manifest_sha256)


def test_a_checkpoint_only_on_disk_is_stored_before_it_is_recorded(
    server: S3Server, bench: Bench, store: RunStore
) -> None:
    bench.commit(0, 1)
    row = bench.publish(1)
    bench.take_over()
    keeper = bench.keeper()
    server.refuse(403, "AccessDenied", 99)
    with pytest.raises(ConfigurationError):
        keeper.attach(in_flight=False)
    assert keeper.kept() == [], "a checkpoint missing from the store was recorded"
    server.refusals.clear()
    assert [found.folder for found in keeper.attach(in_flight=False)] == [row.folder]
    assert store.folders(CHECKPOINTS) == {row.folder: True}


def test_a_checkpoint_only_on_the_store_is_fetched_and_recorded(bench: Bench, store: RunStore) -> None:
    bench.commit(0, 1)
    row = bench.publish(1)
    store.publish(row.folder)
    shutil.rmtree(bench.folder)
    bench.take_over()
    assert [found.folder for found in bench.keeper().attach(in_flight=False)] == [row.folder]
    assert bench.folders() == [Path(row.folder).name]


def test_partial_and_unusable_checkpoints_are_deleted_from_the_store(
    bench: Bench, store: RunStore, objects: ObjectStore
) -> None:
    bench.commit(0, 1)
    uncommitted = bench.publish(3)
    store.publish(uncommitted.folder)
    half = f"{CHECKPOINTS}/b000-i000001.t0001"
    later = f"{CHECKPOINTS}/b000-i000009.t0099"
    for folder in (half, later):
        objects.write(f"{bench.run}/{folder}/sub/weights", b"x")
    bench.take_over()
    keeper = bench.keeper()
    keeper.attach(in_flight=True)
    assert store.folders(CHECKPOINTS) == {half: False, uncommitted.folder: True, later: False}, (
        "a trainer may still be writing them"
    )
    keeper.attach(in_flight=False)
    assert store.folders(CHECKPOINTS) == {later: False}, "a driver of a later term may still be writing it"


def test_both_tiers_are_pruned(bench: Bench, store: RunStore) -> None:
    for iteration in range(6):
        bench.commit(iteration)
        store.publish(bench.publish(iteration).folder)
        bench.checkpoint(iteration)
    assert [Path(folder).name for folder in store.folders(CHECKPOINTS)] == bench.folders()
    assert bench.kept() == [0, 4, 5]


def test_the_next_sweep_deletes_what_the_store_refused_to_delete(
    server: S3Server, bench: Bench, store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = bench.publish(1)
    store.publish(row.folder)
    refuse = InfrastructureError("refused")
    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "delete", lambda *_: (_ for _ in ()).throw(refuse))
        store.remove(row.folder)
    assert "until the next sweep" in caplog.text
    assert store.sweep(CHECKPOINTS, [], term=1) == [row.folder]
    assert store.folders(CHECKPOINTS) == {}


# -- experience -------------------------------------------------------------------------------------------------------


def test_a_shard_is_reported_once_it_is_on_the_store(server: S3Server, objects: ObjectStore, run_folder: Path) -> None:
    store = ObjectRunStore(objects, run_folder)
    spec = spec_with()
    server.refuse(403, "AccessDenied", 99)
    with pytest.raises(ConfigurationError):
        collect(run_folder, spec, store=store)
    assert find_sealed(run_folder, WorkKey("run", 0, 1, "collect", 0, 0)), "sealed on the disk but not reported"
    server.refusals.clear()
    receipts, _ = collect(run_folder, spec, term=2, store=store)
    assert {receipt.adopted for receipt in receipts} == {True, False}
    for receipt in receipts:
        store.verify(receipt.folder, receipt.manifest_sha256)
    assert set(store.folders(str(iteration_folder(0, 1)))) == {receipt.folder for receipt in receipts}


def test_missing_and_damaged_shards_are_fetched_from_the_store(bench: Bench, store: RunStore) -> None:
    bench.commit(0, 1, 2, sealed=True)
    publish_shards(bench, store)
    rows = bench.ledger.records.shards(bench.run, 0, 1)
    (bench.folder / rows[0].folder / "samples.parquet").write_bytes(b"damaged")
    shutil.rmtree(bench.folder / rows[1].folder)
    assert whole_shards(store, bench.folder, rows) == list(rows)
    store.remove(rows[1].folder)
    shutil.rmtree(bench.folder / rows[1].folder)
    assert whole_shards(store, bench.folder, rows) == [rows[0]], "lost on both tiers: must be made again"


def test_unrecorded_sealed_shards_are_fetched_from_the_store(bench: Bench, store: RunStore) -> None:
    bench.commit(0, 1, sealed=True)
    publish_shards(bench, store)
    shutil.rmtree(bench.folder)
    assert len(fetch_sealed(store, bench.folder, 0, 1)) == 2
    assert find_sealed(bench.folder, WorkKey(bench.run, 0, 1, "collect", shard=1))
    assert fetch_sealed(store, bench.folder, 0, 2) == []


def test_unneeded_experience_is_deleted_from_both_tiers(tmp_path: Path, url: str) -> None:
    plain = stored_spec(url)
    spec = plain.model_copy(update={"retention": plain.retention.model_copy(update={"experience": "needed"})})
    bench = Bench(Home(tmp_path / "runs"), spec)
    store = open_store(spec, bench.folder)
    bench.commit(*range(7), sealed=True)
    publish_shards(bench, store)
    for iteration in (0, 4, 6):
        bench.checkpoint(iteration)
    shutil.rmtree(bench.folder / iteration_folder(0, 2))
    pruned = prune_experience(bench.ledger, bench.fence, bench.folder, spec, store)
    assert pruned == [1, 2, 3, 4], "includes iterations that are only on the store"
    left = {folder.split("/")[2] for folder in store.folders("experience", depth=3)}
    assert left == {"i000005", "i000006"}
    bench.ledger.close()


# -- inputs, owners, commands -----------------------------------------------------------------------------------------


def test_inputs_are_made_once_and_then_fetched(bench: Bench, store: RunStore) -> None:
    made = settle_inputs(bench.spec, bench.folder, store)
    shutil.rmtree(bench.folder / INPUTS)
    changed = bench.spec.model_copy(deep=True)
    assert settle_inputs(changed, bench.folder, store) == made
    shutil.rmtree(bench.folder / INPUTS)
    store.remove(INPUTS)
    assert settle_inputs(bench.spec, bench.folder, store) == made
    assert store.folders("", depth=1)[INPUTS], "inputs made again are stored again"


def test_a_run_of_another_ledger_is_not_touched(tmp_path: Path, url: str) -> None:
    for name in ("one", "other"):
        bench = Bench(Home(tmp_path / name), stored_spec(url))
        if name == "one":
            claim_store(bench.ledger, bench.run, bench.spec, bench.folder)
            claim_store(bench.ledger, bench.run, bench.spec, bench.folder)
        else:
            with pytest.raises(ConfigurationError, match=r"another ledger.*another prefix"):
                claim_store(bench.ledger, bench.run, bench.spec, bench.folder)
        bench.ledger.close()


@pytest.fixture
def sound(tmp_path: Path, url: str) -> tuple[Home, str]:
    """Creates a run that is complete on both tiers."""
    home = Home(tmp_path / "runs")
    spec = toy_spec().model_copy(update={"storage": StorageSpec(url=url)})
    run = make_sound_run(home, spec)
    folder = home.run_folder(run)
    store = open_store(spec, folder)
    for path in sorted([folder / INPUTS, *folder.glob("experience/*/*/w*"), *folder.glob("checkpoints/*")]):
        store.publish(str(path.relative_to(folder)))
    return home, run


def test_a_lost_folder_is_audited_read_and_forked_from_the_store(sound: tuple[Home, str]) -> None:
    home, run = sound
    from db.ledger import Ledger

    with Ledger.open(home.ledger) as ledger:
        before = run_results(ledger, run)
        samples = rollouts(ledger, home, run, 1, Selection()).samples
        shutil.rmtree(home.run_folder(run))
        fetch_iteration(ledger, home, run, 1)
        assert samples and rollouts(ledger, home, run, 1, Selection()).samples == samples
        shutil.rmtree(home.run_folder(run))
        restorable = RestorePoints(ledger, home.run_folder(run), run, 0)
        assert restorable.within(lambda _: toy_spec(), PastSpecs(ledger)) == [0, 1, 2, 3]
        assert restorable.base(3, toy_spec(), PastSpecs(ledger)).iteration == 2
        shutil.rmtree(home.run_folder(run))
        report = verify_run(ledger, run, home.run_folder(run), None)
        assert report.disagreement is None
        assert run_results(ledger, run) == before
        for part in (*home.run_folder(run).glob("checkpoints/*"), *home.run_folder(run).glob("experience/*/*/w*")):
            (part / MANIFEST).unlink()
        report = verify_run(ledger, run, home.run_folder(run), None)
        assert report.disagreement is None, "a host may have a part of what others have written"


@pytest.mark.verify
def test_damage_on_the_store_alone_fails_the_audit(sound: tuple[Home, str], objects: ObjectStore) -> None:
    home, run = sound
    from db.ledger import Ledger

    with Ledger.open(home.ledger) as ledger:
        row = ledger.records.own_checkpoints(run, "kept")[0]
        objects.write(f"{run}/{row.folder}/weights.safetensors", b"damaged")
        report = verify_run(ledger, run, home.run_folder(run), None)
    assert report.disagreement is not None
    assert (report.disagreement.check, "weights.safetensors" in report.disagreement.place) == ("checkpoints", True)


@pytest.mark.verify
def test_a_fork_may_use_another_store_but_a_run_may_not_move(sound: tuple[Home, str], url: str) -> None:
    home, run = sound
    shutil.rmtree(home.run_folder(run))
    with pytest.raises(ConfigurationError, match=f"--set storage.url: .* {url}; `yatt fork {run} "):
        revise(home, run, ["storage.url=null"])
    made = fork(home, run, 3, [f"storage.url={url}/forks"])
    folder = home.run_folder(made.run)
    store = ObjectRunStore(ObjectStore(f"{url}/forks"), folder)
    copies = [name for name, whole in store.folders(CHECKPOINTS).items() if whole]
    assert copies == [f"{CHECKPOINTS}/b000-i000002.t0000"]
    assert len(store.folders("experience", depth=3)) == 2
    shutil.rmtree(folder)
    assert store.fetch(copies[0])
    with pytest.raises(DataError, match=r"b000-i000001.t0000/manifest.json"):
        store.verify(f"{CHECKPOINTS}/b000-i000001.t0000", "0" * 64)
