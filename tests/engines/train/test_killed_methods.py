"""Every method, killed in the middle of learn: a trainer that restores the checkpoint and replays ends with the same bits."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.algorithms.methods import METHODS, Teachers
from tests.engines.train.groups import RANKS
from tests.engines.train.support import make_engine, make_model_folder, make_spec, prepare, random_task
from tests.engines.train.test_sampler_support import replaying_spec, sampled_task
from tests.engines.train.test_teachers import shown_task
from yatt_core.algorithms.moments import RewardMoments
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.steps.coefficients import adapted
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.protocols.receipts import BatchTask, UpdateReceipt
from yatt_core.spec import RunSpec
from yatt_core.spec.presets import preset_tree
from yatt_core.spec.reading.layers import lay_over

pytestmark = pytest.mark.verify
FIRST = 1
LAST = 3
STEPS = 4
"""The iteration with a checkpoint, the one that is killed, and the optimizer steps of an iteration."""


@dataclass(frozen=True)
class Carried:
    """What a commit hands to the next iteration."""

    moments: RewardMoments = field(default_factory=RewardMoments)
    coefficients: tuple[tuple[str, float], ...] = ()


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Teachers:
    folder = tmp_path_factory.mktemp("teachers")
    return Teachers(make_model_folder(folder / "early", 5), make_model_folder(folder / "late", 6))


def spec_of(name: str, teachers: Teachers) -> RunSpec:
    keys = METHODS[name].section(2 * FIRST, teachers)
    preset = keys.pop("preset", None)
    keys = {**(lay_over(preset_tree(preset), keys) if preset else keys), "epochs": 2, "mini_batches": STEPS // 2}
    if "reference_interval" in keys.get("kl", {}):
        keys["kl"] = {**keys["kl"], "reference_interval": 2}
    return make_spec(algorithm=keys)


def learn(engine: TorchTrainEngine, spec: RunSpec, task: BatchTask, before: Carried) -> tuple[UpdateReceipt, Carried]:
    given = replace(task, reward_moments=before.moments, coefficients=dict(before.coefficients))
    prepared = prepare(engine, given)
    update = engine.learn(given, prepared)
    found = adapted(spec, dict(before.coefficients), {**prepared.metrics, **update.metrics})
    return update, Carried(prepared.reward_moments, tuple(sorted(found.items())))


def run_until_killed(spec: RunSpec, folder: Path, model: Path, tasks: list[BatchTask]) -> None:
    """Learns in a process of its own, which keeps what a run keeps, and dies before the third step of the last iteration."""
    torch.set_num_threads(1)
    engine = make_engine(spec, folder, model)
    carried = Carried()
    taken = 0
    real = FlatAdamW.apply

    def counted(self: FlatAdamW, *given: Any) -> float:
        nonlocal taken
        if self is engine.policy.optimizer:
            taken += 1
            if taken == STEPS * (LAST - 1) + 3:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *given)

    FlatAdamW.apply = counted
    for task in tasks:
        update, carried = learn(engine, spec, task, carried)
        (folder / f"{task.key.iteration}.committed").write_bytes(pickle.dumps((update, carried)))
        if task.key.iteration == FIRST:
            (folder / "checkpoint").mkdir()
            engine.freeze_state()(folder / "checkpoint")


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.lag is None])
def test_a_run_killed_in_learn_ends_with_the_same_bits(
    name: str, tmp_path: Path, model_folder: Path, teachers: Teachers
) -> None:
    spec = spec_of(name, teachers)
    make_task = shown_task if METHODS[name].teaching == "self" else random_task
    tasks = [make_task(tmp_path, iteration) for iteration in range(1, LAST + 1)]

    check_killed(spec, tasks, tmp_path, model_folder)


def test_a_run_that_replays_supports_ends_with_the_same_bits(tmp_path: Path, model_folder: Path) -> None:
    spec = replaying_spec(mini_batches=STEPS // 2, epochs=2, kl={"coefficient": 0.01})
    tasks = [sampled_task(model_folder, tmp_path, iteration) for iteration in range(1, LAST + 1)]
    check_killed(spec, tasks, tmp_path, model_folder)


def check_killed(spec: RunSpec, tasks: list[BatchTask], tmp_path: Path, model_folder: Path) -> None:
    """Kills a run in learn, resumes it, and compares it with one that was not disturbed."""
    whole = make_engine(spec, tmp_path, model_folder)
    state = Carried()
    undisturbed = {}
    for task in tasks:
        update, state = learn(whole, spec, replace(task, term=3), state)
        undisturbed[task.key.iteration] = (update.fingerprint, update.metrics, state)

    victim = RANKS.Process(target=run_until_killed, args=(spec, tmp_path, model_folder, tasks))
    victim.start()
    victim.join(300)
    assert victim.exitcode == -signal.SIGKILL
    assert not (tmp_path / f"{LAST}.committed").exists()

    resumed = make_engine(spec, tmp_path, model_folder)
    resumed.restore(tmp_path / "checkpoint", FIRST)
    _, state = pickle.loads((tmp_path / f"{FIRST}.committed").read_bytes())
    for task in tasks[FIRST:]:
        update, state = learn(resumed, spec, replace(task, term=2), state)
        assert (update.fingerprint, update.metrics, state) == undisturbed[task.key.iteration]
    replayed, _ = pickle.loads((tmp_path / f"{LAST - 1}.committed").read_bytes())
    assert replayed.fingerprint == undisturbed[LAST - 1][0]
    assert resumed.weights_digest() == whole.weights_digest()
