"""Runs with a critic or a teacher end to end: they learn, and a kill does not change their bits."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from db.ledger import Ledger
from tests.engines.train.letters import LETTERS
from tests.engines.train.support import ONLY_FILE
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
PPO = (
    "algorithm={advantage: {kind: gae}, epochs: 2, mini_batches: 4,"
    " critic: {optimizer: {learning_rate: 3.0e-3}, warmup_iterations: 2}}"
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Returns overrides for a task that is learned in seconds: repeat the last of three letters."""
    path = tmp_path_factory.mktemp("letters") / "letters.jsonl"
    rows = [{"prompt": " ".join(word), "answer": word[-1]} for word in itertools.product(LETTERS, repeat=3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (
        f"data.sources=[{{kind: jsonl, path: {path}}}]",
        "data.held_out=30",
        "data.probe=30",
        "data.prompts_per_iteration=24",
        "rollout.max_new_tokens=3",
        "rewards.parts=[{name: score, function: exact_match}]",
        "model.layers=2",
        "sft.max_steps=100",
        "sft.batch_size=32",
        "sft.learning_rate=3.0e-3",
        "sft.stop_accuracy=0.4",
        "sft.probe_every=5",
        "trainer.optimizer.learning_rate=3.0e-3",
        "trainer.optimizer.epsilon=1.0e-4",
        "trainer.engine={kind: torch, ranks: 1}",
        "iterations=28",
        "evaluation.every=0",
        "checkpoints.every=28",
        "recovery.phase_deadline_seconds=300",
    )


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery, letters: tuple[str, ...]) -> tuple[Driver, str]:
    """Drives a run with a critic to its end."""
    driver = Driver(tmp_path_factory.mktemp("ppo"), nursery)
    run = driver.create("torch.yaml", *letters, PPO)
    driver.drive(run)
    return driver, run


def history(ledger: Ledger, run: str, metric: str) -> list[float]:
    return [value for _, value in ledger.metrics.history(run, metric)]


def test_a_run_with_a_critic_learns(taught: tuple[Driver, str]) -> None:
    driver, run = taught
    with driver.ledger() as ledger:
        accuracy = history(ledger, run, "evaluation/accuracy")
        explained = history(ledger, run, "explained_variance")
        losses = history(ledger, run, "policy_loss")
        values = history(ledger, run, "value_loss")
    assert accuracy[-1] > accuracy[0] + 0.3
    assert explained[0] <= 0.0 < max(explained[-5:])
    assert (len(losses), len(values)) == (26, 28), "at first only the critic learns"


def test_a_student_learns_from_its_teacher_alone(
    taught: tuple[Driver, str], driver: Driver, letters: tuple[str, ...], tmp_path: Path
) -> None:
    """The teacher is the final policy of the run with a critic; no reward counts."""
    other, run = taught
    folder = other.home.run_folder(run)
    teacher = shutil.copytree(folder / "inputs" / "model", tmp_path / "teacher")
    with other.ledger() as ledger:
        checkpoint = folder / ledger.records.checkpoints(run)[0].folder
    shutil.copyfile(checkpoint / "weights" / ONLY_FILE, teacher / "model.safetensors")
    distillation = f"{{teachers: [{{model: {{kind: folder, path: {teacher}}}}}], coefficient: 1.0}}"
    unrewarded = "rewards.parts=[{name: score, function: exact_match, weight: 0}]"
    algorithm = f"algorithm={{epochs: 2, mini_batches: 4, distillation: {distillation}}}"
    student = driver.create("torch.yaml", *letters, unrewarded, algorithm)
    driver.drive(student)
    with driver.ledger() as ledger:
        accuracy, divergence = (history(ledger, student, m) for m in ("evaluation/accuracy", "distillation_kl"))
    assert divergence[-1] < 0.5 * divergence[0]
    assert accuracy[-1] > accuracy[0] + 0.3


@pytest.mark.parametrize("engine", ["{kind: torch, ranks: 2}", "{kind: fsdp2, ranks: 2, dtype: float32}"])
def test_killed_it_ends_with_the_same_bits(driver: Driver, letters: tuple[str, ...], engine: str) -> None:
    changes = (*letters, PPO, "iterations=4", "checkpoints.every=2", "sft.max_steps=10", f"trainer.engine={engine}")
    undisturbed = driver.create("torch.yaml", *changes)
    run = driver.create("torch.yaml", *changes)
    driver.drive(undisturbed)
    driver.drive_until_killed(run, "learn:2")
    driver.drive_until_killed(run, "learn:4")
    driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(undisturbed))
