"""Runs that learn from rows of their data: killed or queued, they end with the same bits; MLflow has figures and an alias."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from examples.preferences import preference_rows
from flows.reports.audit import verify_run
from ops.integrations.promotion import deliver, promote
from tests.flows.tools import Driver
from tests.flows.workload_runs import require_same, through_the_queue

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
SPEC = "../../configs/dpo.yaml"
PHASES = {"start", "recover", "sft", "prepare", "learn", "evaluate", "checkpoint", "commit", "commit_start"}
SMALL = (
    "iterations=4", "model.hidden_size=32", "data.held_out=20", "data.prompts_per_iteration=32", "objective.mini_batches=2",
    "trainer.optimizer.learning_rate=3.0e-3", "checkpoints.every=2", "evaluation.every=2", "tracking.reports=false",
    "recovery.lease_seconds=5.0", "recovery.phase_deadline_seconds=60",
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    """Returns overrides with which a test can afford the example."""
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in preference_rows(200)))
    return (f"data.sources.0.path={path}", *SMALL)


def test_a_kill_while_it_learns_changes_no_bit(driver: Driver, small: tuple[str, ...]) -> None:
    undisturbed, run = (driver.create(SPEC, *small) for _ in range(2))
    driver.drive(undisturbed)
    driver.drive_until_killed(run, "learn:4")
    driver.end_actors(run)
    driver.drive(run)
    for key in ("weights_digest", "metrics_digest"):
        assert getattr(driver.results(run), key) == getattr(driver.results(undisturbed), key)
    with driver.ledger() as ledger:
        accuracy = [value for _, value in ledger.metrics.history(run, "evaluation/accuracy")]
        phases = {row.phase for iteration in range(5) for row in ledger.phases.attempts(run, 0, iteration)}
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
    assert report.sound, report.disagreement
    assert phases == PHASES, "nothing is placed, collected or sent to engines"
    assert accuracy[0] == 0.5 and accuracy[-1] > 0.8


def test_rows_from_the_queue_give_the_same_and_mlflow_has_their_figures_and_an_alias(
    driver: Driver, small: tuple[str, ...], service_environment: Mapping[str, str]
) -> None:
    undisturbed, run = (driver.create(SPEC, *small, "workload.kind=rows") for _ in range(2))
    driver.drive(undisturbed)
    through_the_queue(driver, run, service_environment)
    require_same(driver, run, undisturbed)
    promote(driver.home, run, "candidate", 2, by="ada", why="the middle of it")
    assert deliver(driver.home, run) is None, "MLflow is there"
    with driver.ledger() as ledger:
        tracked = ledger.runs.find(run).mlflow_run_id
        margins = ledger.metrics.history(run, "preference/margin")
        accuracy = ledger.metrics.history(run, "evaluation/accuracy")
        (kept,) = [row for row in ledger.records.checkpoints(run) if row.iteration == 2]
    assert tracked and [at for at, _ in margins] == [1, 2, 3, 4] and [at for at, _ in accuracy] == [0, 2, 4]
    client = MlflowClient(driver.home.tracking_uri)
    for name, values in (("preference/margin", margins), ("evaluation/accuracy", accuracy)):
        assert [(point.step, point.value) for point in client.get_metric_history(tracked, name)] == values
    version = client.get_model_version_by_alias("dpo", "candidate")
    assert (version.tags["yatt.run"], version.tags["yatt.iteration"]) == (run, "2")
    assert version.tags["yatt.weights_digest"] == kept.weights_digest


def test_a_reward_model_trained_here_rewards_a_run_here(driver: Driver, small: tuple[str, ...], tmp_path: Path) -> None:
    """The second run learns from pairs of its own samples, in the order of the reward model (online DPO)."""
    form = "{prompt} {response}"
    trained = driver.create(SPEC, *small, f"objective={{kind: reward_model, template: '{form}'}}", "iterations=12")
    driver.drive(trained)
    folder = tmp_path / "reward"
    command = [
        sys.executable,
        "-m",
        "ops.cli.main",
        "--home",
        str(driver.folder),
        "export",
        trained,
        "--to",
        str(folder),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    parts = (
        "[{name: exact, function: exact_match, weight: 0}, "
        f"{{name: preferred, kind: reward_model, model: {{path: {folder}}}, template: '{form}'}}]"
    )
    sampled = (
        "objective.pairs=sampled", "objective.mini_batches=1", "rollout.engine={kind: torch, instances: 1}",
        "rollout.samples_per_prompt=4",
    )  # fmt: skip
    run = driver.create(SPEC, *small, *sampled, f"rewards.parts={parts}", "iterations=3")
    driver.drive(run)
    with driver.ledger() as ledger:
        accuracy = [value for _, value in ledger.metrics.history(trained, "evaluation/accuracy")]
        rewards = [value for _, value in ledger.metrics.history(run, "reward/preferred")]
        margins = [value for _, value in ledger.metrics.history(run, "preference/margin")]
    assert accuracy[0] == 0.5 and accuracy[-1] > 0.8
    assert len(rewards) == len(margins) == 3
    assert margins[-1] > 0.001 > abs(margins[0]), "the policy equals its reference at first"
