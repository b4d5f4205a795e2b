"""MLflow behind the outbox: all is stored once, however often it is delivered and wherever the deliverer dies."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.utils.validation import _validate_metric_name

from db.core.engine import Fence
from db.core.holder import Holder
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from flows.delivery.outbox import creation_id, deliver_pending, mlflow_place, run_in
from flows.run.protocols import OutboxItem
from ops.integrations.mlflow_details import NOTE_TAG, TABLES_TAG
from ops.integrations.mlflow_keys import LONGEST_KEY, accepted_key
from ops.integrations.mlflow_tracker import KIND, KIND_TAG, OUTBOX_TAG, MlflowTracker
from tests.db.tools import commit_through
from tests.services import ROOT
from yatt_core.errors import InfrastructureError, RefusedRowError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrates MLflow's store once for all tests; each test uses a separate experiment."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def tracker(store: Path) -> MlflowTracker:
    return tracker_of(store)


def tracker_of(store: Path) -> MlflowTracker:
    return MlflowTracker(f"sqlite:///{store / 'mlflow.db'}", store / "artifacts")


def row(kind: str, body: Mapping[str, Any], tracking_run: str | None = None, key: str = "") -> OutboxItem:
    return OutboxItem(key or f"toy-1/{kind}", "toy-1", kind, body, 1_700_000_000_123, tracking_run)


def body_of(manifest: str, iteration: int, state: str) -> dict[str, Any]:
    return {
        "model": "toy",
        "version_id": f"toy-1/b0/checkpoint-i{iteration}-e1",
        "branch": 0,
        "iteration": iteration,
        "term": 1,
        "folder": "checkpoints/x",
        "manifest_sha256": manifest,
        "weights_digest": "w",
        "state": state,
    }


def created(tracker: MlflowTracker, experiment: str) -> str:
    item = row("run", {"experiment": experiment, "name": "toy-1", "owner": "a ledger"})
    return run_in(tracker.deliver([item])[item.key])


def points(tracker: MlflowTracker, run: str, key: str) -> list[tuple[int, int, float]]:
    return [(m.step, m.timestamp, m.value) for m in tracker._client.get_metric_history(run, key)]


def test_points_delivered_three_times_are_stored_once(store: Path) -> None:
    run = created(tracker_of(store), "thrice")
    rows = [
        row("metrics", {"branch": 0, "iteration": k, "metrics": {"reward/mean": k / 10, "entropy": 2.0}}, run, f"m{k}")
        for k in range(3)
    ]
    for _ in range(3):
        tracker_of(store).deliver(rows)
    found = points(tracker_of(store), run, "reward/mean")
    assert found == [(k, 1_700_000_000_123, k / 10) for k in range(3)]
    assert len(points(tracker_of(store), run, "entropy")) == 3


def test_a_run_whose_creation_got_no_response_is_found_again(store: Path) -> None:
    first = created(tracker_of(store), "ambiguous")
    assert created(tracker_of(store), "ambiguous") == first
    other = row("run", {"experiment": "ambiguous", "name": "toy-2", "owner": "a ledger"}, key="toy-2/run")
    assert run_in(tracker_of(store).deliver([other])["toy-2/run"]) != first


def test_a_deleted_run_is_marked_as_deleted_however_often_it_is_told(store: Path) -> None:
    client = tracker_of(store)._client
    entity = {"experiment": "deletions", "name": "toy-1"}
    kept = row("run", {**entity, "owner": "another ledger"})
    gone = [row("run", {**entity, "owner": "this ledger"}, key=key) for key in ("toy-1/run", "toy-1/b1/run")]
    other, *own = (run_in(tracker_of(store).deliver([item])[item.key]) for item in (kept, *gone))
    version = row("checkpoint", body_of("deletions", 0, "kept"), own[0])
    tracker_of(store).deliver([version])
    deleted = row("deleted", {"owner": "this ledger", "experiments": ["deletions", "no such experiment"]})
    for _ in range(2):
        tracker_of(store).deliver([deleted])
    assert [client.get_run(run).info.lifecycle_stage for run in (other, *own)] == ["active", "deleted", "deleted"]
    (found,) = client.search_model_versions(f"run_id = '{own[0]}'")
    assert found.tags["yatt.state"] == "deleted"


def test_runs_of_one_name_in_two_homes_have_separate_mlflow_runs(tmp_path: Path, store: Path) -> None:
    mlflow_runs = []
    for spec_digest in ("one", "another"):
        with Ledger.open(tmp_path / f"{spec_digest}.db") as ledger:
            run = ledger.runs.create("toy", {}, spec_digest, target_iterations=3).id
            body = {"experiment": "homes", "name": run}
            fence = take_over(ledger, run, 1)
            entries = [OutboxEntry(creation_id(run, branch), "run", body, 5) for branch in (0, 1)]
            ledger.outbox.enqueue(fence, entries)
            deliver_pending(ledger, fence, tracker_of(store))
            mlflow_runs += [mlflow_place(ledger, run, branch) for branch in (0, 1)]
    assert None not in mlflow_runs and len(set(mlflow_runs)) == 4
    experiment = tracker_of(store)._client.get_experiment_by_name("homes").experiment_id
    assert {str(place).partition("/")[0] for place in mlflow_runs} == {experiment}


def test_a_killed_deliverer_leaves_each_row_stored_once(tmp_path: Path, store: Path) -> None:
    """The deliverer is killed after every send, before it marks the rows: the next term sends the same rows again."""
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "digest", target_iterations=3).id
        for pid in range(1, 12):
            fence = take_over(ledger, run, pid)
            if pid == 1:
                body = {"experiment": "killed", "name": run}
                ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/run", "run", body, 5)])
                commit_through(ledger, fence, range(3))
            if not deliver_and_die(ledger, fence, tracker_of(store), dies=pid % 3 != 0):
                break
        assert ledger.outbox.counts(run) == (0, 4)
        mlflow_run = ledger.runs.find(run).mlflow_run_id
    assert mlflow_run is not None
    tracker = tracker_of(store)
    assert points(tracker, mlflow_run, "reward") == [(k, 1000 + k, k / 10) for k in range(3)]
    experiment = tracker._client.get_experiment_by_name("killed")
    assert len(tracker._client.search_runs([experiment.experiment_id])) == 1


def take_over(ledger: Ledger, run: str, pid: int) -> Fence:
    return ledger.leases.acquire(
        run, Holder("here", "boot", pid, 1, f"driver {pid}"), 60, holder_is_gone=lambda _: True
    )


class _Killed(BaseException):
    """The end of the process."""


class _DiesAfterSending:
    def __init__(self, tracker: MlflowTracker) -> None:
        self._tracker = tracker

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        self._tracker.deliver(items)
        raise _Killed


def deliver_and_die(ledger: Ledger, fence: Fence, tracker: MlflowTracker, dies: bool) -> bool:
    """Delivers the pending rows and dies if asked to; returns True if there was something to deliver."""
    try:
        return deliver_pending(ledger, fence, _DiesAfterSending(tracker) if dies else tracker) > 0
    except _Killed:
        return True


def test_params_tags_and_artifacts_arrive_and_may_be_repeated(tracker: MlflowTracker, store: Path) -> None:
    run = created(tracker, "describe")
    params = {f"part.{i}": str(i) for i in range(130)} | {"options.a(b)": "x" * 9000}
    rows = [
        row("params", params, run),
        row("tags", {"yatt.run": "toy-1"}, run),
        row("artifact", {"name": "spec.json", "text": "{}"}, run),
        row("artifact", {"name": "spec.json", "text": '{"a": 1}'}, run, "second"),
    ]
    for _ in range(2):
        tracker.deliver(rows)
    found = tracker._client.get_run(run)
    assert len(found.data.params) == 131
    assert found.data.params["part.129"] == "129"
    assert len(found.data.params["options.a_b_"]) == 6000
    assert found.data.tags["yatt.run"] == "toy-1"
    assert found.data.tags[OUTBOX_TAG] == "toy-1/run"
    files = list((store / "artifacts").rglob("spec.json"))
    assert [file.read_text() for file in files if run in file.parts] == ['{"a": 1}']


def test_an_experiment_is_one_of_trained_models(tracker: MlflowTracker) -> None:
    """MLflow's pages show runs and metrics for such an experiment; somebody's own choice is kept."""
    tracker._client.create_experiment("made by hand")
    tracker._client.create_experiment("chosen", tags={KIND_TAG: "genai_development"})
    kinds = {}
    for name in ("new", "made by hand", "chosen"):
        created(tracker, name)
        kinds[name] = tracker._client.get_experiment_by_name(name).tags[KIND_TAG]
    assert kinds == {"new": KIND, "made by hand": KIND, "chosen": "genai_development"}


def test_data_notes_and_files_arrive_once_and_people_keep_their_words(tracker: MlflowTracker, store: Path) -> None:
    run = created(tracker, "details")
    folder = store / "toy-1"
    (folder / "reports").mkdir(parents=True)
    (folder / "reports" / "samples.json").write_text('{"columns": ["a"], "data": [[1]]}')
    tracker._client.set_tag(run, NOTE_TAG, "mine")
    facts = {"name": "words", "digest": "0123456789abcdef" * 4, "rows": 7, "path": "/inputs/train.parquet"}
    table = {"name": "reports/samples.json", "path": "reports/samples.json", "table": True}
    rows = [
        row("note", {"text": "first"}, run, "n1"),
        row("datasets", {"datasets": [{**facts, "use": "training"}]}, run),
        row("file", table, run, "f1"),
        row("file", {"name": "gone.png", "path": "gone.png"}, run, "f2"),
        row("note", {"text": "second"}, run, "n2"),
    ]
    for _ in range(3):
        tracker_of(store).deliver(rows)
    found = tracker._client.get_run(run)
    note = found.data.tags[NOTE_TAG]
    assert note.startswith("mine") and "second" in note and "first" not in note and note.count("yatt: begin") == 1
    (dataset,) = found.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("words", "0123456789abcdef")
    assert [tag.value for tag in dataset.tags] == ["training"]
    assert [entry.path for entry in tracker._client.list_artifacts(run, "reports")] == ["reports/samples.json"]
    assert json.loads(found.data.tags[TABLES_TAG]) == [{"path": "reports/samples.json", "type": "table"}]


def test_a_file_outside_the_runs_folder_is_refused(tracker: MlflowTracker, store: Path) -> None:
    run = created(tracker, "outside")
    (store / "secret").write_text("secret")
    with pytest.raises(InfrastructureError, match=r"\.\./secret"):
        tracker.deliver([row("file", {"name": "secret", "path": "../secret"}, run)])


def test_a_run_is_ended_with_its_status(tracker: MlflowTracker) -> None:
    run = created(tracker, "ends")
    tracker.deliver([row("status", {"status": "FINISHED"}, run)])
    info = tracker._client.get_run(run).info
    assert (info.status, info.end_time, info.start_time) == ("FINISHED", 1_700_000_000_123, 1_700_000_000_123)


def test_more_points_than_a_request_holds_arrive(tracker: MlflowTracker) -> None:
    run = created(tracker, "many")
    rows = [
        row("metrics", {"branch": 0, "iteration": k, "metrics": {f"m{i}": float(i) for i in range(300)}}, run, f"r{k}")
        for k in range(4)
    ]
    tracker.deliver(rows)
    assert len(points(tracker, run, "m299")) == 4


def test_an_unreachable_server_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InfrastructureError, match="MLflow at http://user:") as caught:
        created(MlflowTracker(address, tmp_path), "away")
    assert "secret" not in str(caught.value)


def test_an_invalid_store_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("this is no database, and long enough to be seen as none" * 40)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(tmp_path / "mlflow.db").execute("SELECT 1 FROM runs")
    with pytest.raises(InfrastructureError, match="MLflow at sqlite"):
        created(tracker_of(tmp_path), "broken")


@pytest.mark.parametrize("name", ["größe@k %", "", "a\nb", "recall@10", "../../up", "/a", "a//b", ".", "..", "x" * 600])
def test_points_params_and_tags_of_any_name_arrive(tracker: MlflowTracker, name: str) -> None:
    run = created(tracker, f"named {name.encode().hex()[:80]}")
    tracker.deliver(
        [
            row("metrics", {"branch": 0, "iteration": 1, "metrics": {name: 2.0, "loss": 3.0}}, run),
            row("params", {name: "a", "seed": "b"}, run),
            row("tags", {name: "c"}, run),
        ]
    )
    data = tracker._client.get_run(run).data
    assert sorted(data.metrics.values()) == [2.0, 3.0]
    assert data.params == {accepted_key(name): "a", "seed": "b"}
    assert data.tags[accepted_key(name)] == "c"


def test_long_names_that_begin_alike_stay_apart(tracker: MlflowTracker) -> None:
    run = created(tracker, "long names")
    names = ["x" * LONGEST_KEY, "x" * (LONGEST_KEY + 1), "x" * (LONGEST_KEY + 2), "x" * LONGEST_KEY + "?"]
    values = {name: str(number) for number, name in enumerate(names)}
    tracker.deliver([row("params", values, run), row("tags", values, run)])
    data = tracker._client.get_run(run).data
    assert data.params == {accepted_key(name): value for name, value in values.items()}
    assert len(data.params) == len(names) and data.params[names[0]] == "0"
    assert data.params.items() <= data.tags.items()


@pytest.mark.parametrize("name", ["loss", "evaluation/mean of 3", "seconds/learn", "a.b", "..a", "a/b.c:d"])
def test_names_that_mlflow_takes_stay_as_they_are(name: str) -> None:
    if not name.startswith(".."):
        assert accepted_key(name) == name
    _validate_metric_name(accepted_key(name))


def test_what_mlflow_refuses_for_its_contents_is_told_apart_from_a_run_that_was_deleted(tracker: MlflowTracker) -> None:
    run = created(tracker, "refusing")
    tracker.deliver([row("params", {"a": "1"}, run)])
    other = row("params", {"a": "2"}, run)
    with pytest.raises(RefusedRowError, match="MLflow at sqlite"):
        tracker.deliver([other])
    tracker._client.delete_run(run)
    with pytest.raises(InfrastructureError, match=rf"the run {run} is deleted; restore it") as caught:
        tracker.deliver([row("params", {"b": "2"}, run)])
    assert not isinstance(caught.value, RefusedRowError)


def test_rows_before_their_run_and_unknown_kinds_are_refused(tracker: MlflowTracker) -> None:
    with pytest.raises(InfrastructureError, match=r"outbox row \S+: .*MLflow run"):
        tracker.deliver([row("tags", {"a": "b"})])
    run = created(tracker, "kinds")
    with pytest.raises(InfrastructureError, match="kind 'postcard'"):
        tracker.deliver([replace(row("postcard", {}), tracking_run=run)])


@pytest.mark.parametrize("first", ["yatt_core", "ops.cli.main"])
def test_mlflow_leaves_no_number_of_an_installation_in_the_home_folder(tmp_path: Path, first: str) -> None:
    # Without the variables by which MLflow recognises tests, under which it would leave none anyway.
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", f"import {first}, mlflow"], env=environment, cwd=tmp_path, check=True)
    assert not (tmp_path / ".config").exists()
