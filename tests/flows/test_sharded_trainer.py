"""A run whose trainer's ranks share the model, from end to end: killed, resumed, gone on with under other layouts and engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from db.records import SnapshotRow
from flows.branches import fork
from flows.lineage import lineage_of
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
TRAINER = "trainer.engine={kind: fsdp2, ranks: 2, dtype: float32}"
EPSILON = "trainer.optimizer.epsilon=1.0e-4"
"""Without it AdamW makes of a gradient that is nothing but rounding a whole step."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> tuple[Driver, str]:
    driver = Driver(tmp_path_factory.mktemp("undisturbed"), nursery)
    run = driver.create("torch.yaml", TRAINER, EPSILON)
    driver.drive(run)
    return driver, run


def test_killed_it_ends_with_the_same_bits(finished: tuple[Driver, str], driver: Driver) -> None:
    """Once with its ranks left alive in the middle of an update, once with all of them gone."""
    run = driver.create("torch.yaml", TRAINER, EPSILON)
    driver.drive_until_killed(run, "learn:2")
    driver.drive_until_killed(run, "learn:3")
    driver.end_actors(run)
    driver.drive(run)
    failed = {(a.iteration, a.phase) for i in range(5) for a in driver.attempts(run, i) if a.state == "FAILED"}
    assert failed == {(2, "learn"), (3, "learn")}, "both kills fell where they were meant to"
    assert same_result(driver.results(run), finished[0].results(finished[1]))


@pytest.mark.parametrize(
    ("trainer", "layout"),
    [("trainer.engine.ranks=1", "fsdp2 x 1"), ("trainer.engine={kind: torch, ranks: 2}", "torch x 2")],
    ids=["fsdp2", "torch"],
)
def test_another_layout_goes_on_within_tolerance(finished: tuple[Driver, str], trainer: str, layout: str) -> None:
    """Behind the snapshot of 3: the same samples, the same update but for rounding, and a mark in the lineage."""
    driver, run = finished
    made = fork(driver.home, run, 3, [trainer]).run
    driver.drive(made)
    with driver.ledger() as ledger:
        assert ledger.commits.experience_digests(made) == ledger.commits.experience_digests(run)
        (mark,) = lineage_of(ledger, driver.home, made).drift
        weights = [weights_of(driver, ledger.records.snapshots(name)[0]) for name in (run, made)]
    assert (mark["at"], mark["replayed"], mark["changes"]["layout"]) == (3, 0, ["fsdp2 x 2", layout])
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0]), "else the tolerance tells nothing"
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, atol=1e-6, rtol=0, err_msg=name)


def weights_of(driver: Driver, snapshot: SnapshotRow) -> dict[str, Any]:
    weights: dict[str, Any] = load_file(driver.home.run_folder(snapshot.run) / snapshot.folder / "weights.safetensors")
    return weights
