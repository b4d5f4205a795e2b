"""A whole run on virtual engines: what it leaves in the ledger, files, MLflow and Prefect."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Mapping
from typing import Any

import duckdb
import pandas as pd
import pytest

from db.ledger import Ledger
from flows.placement.seats import seat_spans
from flows.reports.profile import profile_of
from flows.run.creation import current_spec
from flows.run.profile_record import read_profile
from flows.run.starts import SESSION_READY, Machine, SessionStart
from tests.flows.tools import Driver
from tests.waiting import wait_until
from yatt_core.experience.telemetry import read_telemetry
from yatt_core.planning.start import actors_of, engines_of
from yatt_core.spent_time import DATA, ENGINE, LEDGER, PREFECT, RAY, REWARDS, WAITING

ITERATIONS = 8
SAMPLED = "evaluation.sampling={samples: 3, temperature: 0.7, pass_at: [3], vote: {}}"
PAIRS = ("controllers.count=2", "rollout.engine.instances=2", "trainer.engine.ranks=2")


@pytest.fixture
def finished(driver: Driver) -> tuple[Driver, str]:
    run = driver.create("virtual.yaml", "name=everything", "tracking.reports=true", SAMPLED, *PAIRS)
    driver.drive(run)
    return driver, run


def test_everything_a_run_leaves(finished: tuple[Driver, str], service_environment: Mapping[str, str]) -> None:
    driver, run = finished
    check_ledger(driver, run)
    check_files(driver, run)
    check_profiles(driver, run)
    check_mlflow(driver, run)
    check_prefect(driver, run, service_environment["PREFECT_API_URL"])
    check_no_payload(driver, run, service_environment["PREFECT_API_URL"])


def check_ledger(driver: Driver, run: str) -> None:
    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        assert (row.state, row.iteration) == ("completed", ITERATIONS)
        assert ledger.events.verify(run) is None
        seats = seat_spans(ledger, run)
        assert {"rollout-0", "rollout-1", "trainer-0", "trainer-1"} <= {span.seat.actor for span in seats}
        assert all(span.seat.node and span.until is not None for span in seats)
        assert [step for step, _ in ledger.metrics.history(run, "reward/mean")] == list(range(1, ITERATIONS + 1))
        assert [step for step, _ in ledger.metrics.history(run, "evaluation/accuracy")] == [0, 4, 8]
        check_evaluation(ledger, run)
        check_start(ledger, run)
        assert [checkpoint.iteration for checkpoint in ledger.records.checkpoints(run)] == [8, 6, 0]
        for iteration in range(1, ITERATIONS + 1):
            (decision,) = ledger.records.decisions(run, 0, iteration)
            assert decision.decision["mode"] == "colocate" and decision.reason.startswith("all instances roll out:")
            assert decision.outcome and decision.outcome["seconds"]["collect"] > 0
            assert [shard.shard for shard in ledger.records.shards(run, 0, iteration)] == [0, 1, 2, 3]
            attempts = ledger.phases.attempts(run, 0, iteration)
            assert {attempt.state for attempt in attempts} == {"DONE"}
            assert {attempt.number for attempt in attempts} == {1}
            assert {"place", "collect", "prepare", "learn", "sync", "commit"} <= {attempt.phase for attempt in attempts}
        assert all(value > 0 for _, value in ledger.metrics.history(run, "controllers/peak_bytes_in_flight"))
        spilled = ledger.metrics.history(run, "object_store/spilled_bytes")
        assert spilled == [(step, 0.0) for step in range(1, ITERATIONS + 1)]
    results = driver.results(run)
    assert 0 < results.flow_bytes_per_sample <= 1024
    assert results.weights_digest and results.experience_digest and results.metrics_digest


def check_start(ledger: Ledger, run: str) -> None:
    """Checks what is recorded of the start of the run's only session, on services that runs share."""
    spec = current_spec(ledger, run)
    (link,) = ledger.events.of_kind(run, SESSION_READY)
    start = SessionStart.from_json(link.body)
    assert link.body["term"] == 1
    assert start.seconds > 0
    assert start.machine == Machine.this()
    assert not start.is_new, "another process has created the run"
    assert start.parts.actors == actors_of(spec)
    assert start.parts.engines == engines_of(spec)
    assert start.parts.services == ()
    assert start.parts.prompts > 0


def check_evaluation(ledger: Ledger, run: str) -> None:
    """Checks that metrics of an evaluation follow from the results of its tasks, which the ledger has too."""
    done = ledger.phases.done(run, 0, 4, "evaluate")
    assert done is not None and done.receipt is not None
    tasks = done.receipt["tasks"]
    assert len({task["prompt_id"] for task in tasks}) == len(tasks) > 0
    found = {
        key: dict(ledger.metrics.history(run, f"evaluation/{key}"))[4] for key in ("accuracy", "pass_at_3", "majority")
    }
    assert found["accuracy"] == pytest.approx(sum(task["correct"] for task in tasks) / 3 / len(tasks))
    assert found["pass_at_3"] == sum(task["correct"] > 0 for task in tasks) / len(tasks)
    assert found["majority"] == pytest.approx(sum(task["majority"] for task in tasks) / len(tasks))


def check_files(driver: Driver, run: str) -> None:
    folder = driver.home.run_folder(run)
    files = sorted((folder / "experience/b000/i000003").glob("*/samples.parquet"))
    samples = pd.concat(pd.read_parquet(file) for file in files)
    assert len(samples) == 8 * 4
    assert set(samples["weight_version"]) == {2}
    counted = duckdb.sql(f"select count(*) from read_parquet('{folder}/experience/b000/i000003/w*/samples.parquet')")
    assert counted.fetchall() == [(32,)]
    prepared = sorted((folder / "experience/b000/i000003").glob("prepared.*/*.parquet"))
    assert "advantage" in pd.concat(pd.read_parquet(file) for file in prepared).columns
    assert "generate" in str(read_telemetry(folder, 0, 3))
    logs = "".join(path.read_text() for path in (folder / "logs").glob("*.jsonl"))
    assert {"controller-0", "controller-1", "rollout-0", "trainer-1", "driver"} <= {
        json.loads(line)["actor"] for line in logs.splitlines()
    }
    assert not list(folder.rglob("*.tmp")), "no temporary file remains"


def check_profiles(driver: Driver, run: str) -> None:
    """Checks that each iteration has a record of where its time went, in every process and through every service."""
    folder = driver.home.run_folder(run)
    start = read_profile(folder, 0, 0)
    assert start is not None and {"sft", "sync", "evaluate", "commit"} <= {
        part.phase for part in start.processes["driver"]
    }
    names: set[str] = set()
    found: set[tuple[str, str, str]] = set()
    for iteration in range(1, ITERATIONS + 1):
        record = read_profile(folder, 0, iteration)
        assert record is not None
        phases = {part.phase for part in record.processes["driver"]}
        assert {"place", "collect", "prepare", "learn", "sync", "commit"} <= phases
        assert ("evaluate" in phases) == (iteration % 4 == 0)
        kinds = {(part.phase, part.kind) for part in record.processes["driver"] if part.seconds > 0.0}
        assert {(phase, kind) for phase in phases for kind in (PREFECT, LEDGER)} <= kinds
        assert {("learn", RAY), ("collect", RAY)} <= kinds
        assert profile_of({iteration: record}).accounted <= sum(part.seconds for part in record.processes["driver"])
        names |= record.processes.keys()  # an actor that is slow to answer is left out of an iteration
        found |= {
            (name.partition("-")[0], part.phase, part.kind)
            for name, parts in record.processes.items()
            for part in parts
            if part.seconds > 0.0
        }
    actors = {f"{role}-{number}" for role in ("controller", "rollout", "trainer") for number in (0, 1)}
    assert names == {"driver", *actors}
    assert {("trainer", "learn", ENGINE), ("trainer", "learn", DATA), ("rollout", "collect", ENGINE)} <= found
    assert {("controller", "collect", kind) for kind in (DATA, REWARDS, RAY, WAITING)} <= found
    assert ("rollout", "evaluate", ENGINE) in found


def check_mlflow(driver: Driver, run: str) -> None:
    from mlflow.tracking import MlflowClient

    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        assert ledger.outbox.counts(run)[0] == 0, "nothing waits in the outbox"
        keys = ledger.metrics.latest(run)
        expected = {key: ledger.metrics.history(run, key) for key in keys}
    client = MlflowClient(driver.home.tracking_uri)
    assert row.mlflow_run_id
    tracked = client.get_run(row.mlflow_run_id)
    assert tracked.data.tags["yatt.spec_digest"]
    assert tracked.data.tags["yatt.weights_digest"] == driver.results(run).weights_digest
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["rollout.samples_per_prompt"] == "4"
    for key, points in expected.items():
        history = client.get_metric_history(row.mlflow_run_id, key)
        assert sorted((point.step, point.value) for point in history) == points, key
    artifacts = [artifact.path for artifact in client.list_artifacts(row.mlflow_run_id)]
    assert artifacts == ["learning.png", "reports", "spec.json"]
    assert tracked.data.tags["yatt.state"] == "completed" and run in tracked.data.tags["mlflow.note.content"]
    uses = sorted(tag.value for data in tracked.inputs.dataset_inputs for tag in data.tags)
    assert uses[:2] == ["evaluation", "training"]
    assert "system/cpu_utilization_percentage" in expected
    versions = client.search_model_versions(f"tags.`yatt.run` = '{run}'")
    states = {int(version.tags["yatt.iteration"]): version.tags["yatt.state"] for version in versions}
    assert states == {0: "kept", 3: "pruned", 6: "kept", 8: "kept"}


def check_prefect(driver: Driver, run: str, api: str) -> None:
    flow_runs = post(f"{api}/flow_runs/filter", {"flow_runs": {"name": {"any_": [run]}}})
    assert [flow_run["state_type"] for flow_run in flow_runs] == ["COMPLETED"]
    with driver.ledger() as ledger:
        (session,) = ledger.overview.show(run).sessions
    assert (session.flow_run_id, session.flow_run_name) == (flow_runs[0]["id"], run)
    assert flow_runs[0]["name"] == run
    artifacts = post(f"{api}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_runs[0]["id"]]}}})
    kinds = Counter(artifact["type"] for artifact in artifacts)
    assert kinds["progress"] == 1 and kinds["markdown"] == 1
    check_block(run, api, flow_runs[0]["id"])


def check_block(run: str, api: str, parent: str) -> None:
    """Requires that the run's iterations are a node of its graph, which has the task runs, a table and log lines."""
    (child,) = blocks(api, parent)
    assert (child["name"], child["state_type"]) == ("iterations 0 to 8", "COMPLETED")
    assert child["tags"] == [f"run:{run}"]
    wait_until(lambda: len(tasks(api, child["id"])) >= 3 + 6 * ITERATIONS, 60.0)
    (task,) = [task for task in tasks(api, child["id"]) if task["name"] == "collect 5"]
    assert task["tags"] == [], "for a tag, each task would ask the server for a slot, and fail if it is away"
    with urllib.request.urlopen(f"{api}/flow_runs/{parent}/graph-v2", timeout=30) as answer:
        graph = json.load(answer)
    assert [(node["kind"], node["label"]) for _, node in graph["nodes"]] == [
        ("flow-run", "iterations / iterations 0 to 8")
    ]
    tables = post(f"{api}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [child["id"]]}}})
    (rows,) = [json.loads(artifact["data"]) for artifact in tables if artifact["type"] == "table"]
    assert [row["iteration"] for row in rows] == list(range(ITERATIONS + 1))
    assert all(row["reward"] != "" for row in rows[1:]) and [row["accuracy"] != "" for row in rows].count(True) == 3
    for flow_run in (parent, child["id"]):
        logs = post(f"{api}/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}})
        lines = sorted(line["message"] for line in logs if line["name"] == "yatt")
        assert [line.split(",")[0] for line in lines] == [
            f"iteration {i} of {ITERATIONS}" for i in range(ITERATIONS + 1)
        ]


def blocks(api: str, parent: str) -> list[dict[str, Any]]:
    """Returns the blocks of iterations of a driver session."""
    query = {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}}
    return post(f"{api}/flow_runs/filter", query)


def tasks(api: str, flow_run: str) -> list[dict[str, Any]]:
    return post(f"{api}/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})


def check_no_payload(driver: Driver, run: str, api: str) -> None:
    """Requires that no prompt or response is in the ledger, MLflow's store, or Prefect's data on the flow run."""
    shards = driver.home.run_folder(run).glob("experience/b*/i*/w*/samples.parquet")
    samples = pd.concat(pd.read_parquet(file, columns=["prompt", "response"]) for file in shards)
    texts = {text.encode() for column in samples for text in samples[column] if len(text) >= 12}
    assert len(texts) > 100
    kept = {str(path): path.read_bytes() for path in driver.home.folder.glob("*.db*")}
    with driver.ledger() as ledger:
        (session,) = ledger.overview.show(run).sessions
    keys = [session.flow_run_id, *(block["id"] for block in blocks(api, session.flow_run_id))]
    flow_run = {"flow_runs": {"id": {"any_": keys}}}
    kept |= {kind: json.dumps(post(f"{api}/{kind}/filter", flow_run)).encode() for kind in ("flow_runs", "task_runs")}
    kept["artifacts"] = json.dumps(post(f"{api}/artifacts/filter", flow_run)).encode()
    logs = {"logs": {"flow_run_id": {"any_": keys}}}
    kept["logs"] = json.dumps(post(f"{api}/logs/filter", logs)).encode()
    assert len(kept) > 4 and len(kept["task_runs"]) > 1000
    for place, contents in kept.items():
        assert not [text for text in texts if text in contents], place
    written = [path for path in (driver.home.run_folder(run) / "experience").rglob("*") if path.is_file()]
    for contents in (*kept.values(), *(path.read_bytes() for path in written)):
        assert b"ObjectRef" not in contents, "references die with the cluster"


def post(address: str, body: object) -> list[dict[str, Any]]:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        decoded: list[dict[str, str]] = json.load(answer)
        return decoded
