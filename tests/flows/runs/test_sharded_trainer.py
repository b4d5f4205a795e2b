"""A run with a sharded trainer end to end: killed, resumed, and continued with other layouts and engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from db.write.records import CheckpointRow
from flows.branching.branches import fork
from flows.reports.lineage import lineage_of
from tests.engines.train.support import saved_tensors
from tests.flows.tools import Driver, same_result
from tests.needs import NEEDS_MEGATRON
from tests.recovery.nursery import Nursery

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
COMMON = ("model.layers=2", "trainer.optimizer.epsilon=1.0e-4")
"""With a smaller epsilon, AdamW would turn a gradient of pure rounding errors into a full step."""


@dataclass(frozen=True)
class Trainer:
    """A sharded train engine.

    engine: part of the spec.
    layout: its name in the lineage.
    others: layouts to continue with, and their engines.
    """

    engine: str
    layout: str
    others: dict[str, str]


def megatron(tensors: int, stages: int) -> str:
    sizes = f"tensor_model_parallel_size: {tensors}, pipeline_model_parallel_size: {stages}, data_parallel_size: 1"
    return f"{{kind: megatron, {sizes}, dtype: float32}}"


FSDP2 = Trainer(
    "{kind: fsdp2, ranks: 2, dtype: float32}",
    "fsdp2 x 2",
    {"fsdp2 x 1": "{kind: fsdp2, ranks: 1, dtype: float32}", "torch x 2": "{kind: torch, ranks: 2}"},
)
MEGATRON = Trainer(megatron(2, 1), "megatron x 2, tp 2, pp 1", {"megatron x 2, tp 1, pp 2": megatron(1, 2)})


@dataclass
class Finished:
    trainer: Trainer
    driver: Driver
    run: str


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(FSDP2, id="fsdp2"),
        pytest.param(
            MEGATRON,
            id="megatron",
            marks=NEEDS_MEGATRON,
        ),
    ],
)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Finished:
    driver = Driver(tmp_path_factory.mktemp("undisturbed"), nursery)
    run = driver.create("torch.yaml", f"trainer.engine={request.param.engine}", *COMMON)
    driver.drive(run)
    return Finished(request.param, driver, run)


def test_killed_it_ends_with_the_same_bits(finished: Finished, driver: Driver) -> None:
    """One kill leaves the ranks alive in the middle of an update, the other loses all of them."""
    run = driver.create("torch.yaml", f"trainer.engine={finished.trainer.engine}", *COMMON)
    driver.drive_until_killed(run, "learn:2")
    driver.drive_until_killed(run, "learn:3")
    driver.end_actors(run)
    driver.drive(run)
    failed = {(a.iteration, a.phase) for i in range(5) for a in driver.attempts(run, i) if a.state == "FAILED"}
    assert failed == {(2, "learn"), (3, "learn")}, "both kills hit the intended phase"
    assert same_result(driver.results(run), finished.driver.results(finished.run))


def test_other_layouts_continue_within_tolerance(finished: Finished) -> None:
    """After checkpoint 3: the same samples, the same update except for rounding, and a mark in the lineage."""
    driver = finished.driver
    trainer = finished.trainer
    for layout, engine in trainer.others.items():
        made = fork(driver.home, finished.run, 3, [f"trainer.engine={engine}"]).run
        driver.drive(made)
        with driver.ledger() as ledger:
            assert ledger.commits.experience_digests(made) == ledger.commits.experience_digests(finished.run)
            (mark,) = lineage_of(ledger, driver.home, made).drift
            one, other = (weights_of(driver, ledger.records.checkpoints(name)[0]) for name in (finished.run, made))
        assert (mark["at"], mark["replayed"], mark["changes"]["layout"]) == (3, 0, [trainer.layout, layout])
        assert any((one[name] != other[name]).any() for name in one), "or the tolerance proves nothing"
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, atol=1e-6, rtol=0, err_msg=f"{layout}: {name}")


def weights_of(driver: Driver, checkpoint: CheckpointRow) -> dict[str, Any]:
    return saved_tensors(driver.home.run_folder(checkpoint.run) / checkpoint.folder)
