"""Failures of a reward function in the loop, in simulated time: recorded before they take effect, obeyed by replay."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation import cluster as simulation_cluster
from benchmarks.simulation.cluster import Cluster, DriverKilled
from flows.phases.sealed_groups import references_of
from flows.run.creation import current_spec
from flows.run.results import RunResults, run_results
from tests.collection.local import FewPrompts, LocalStream
from tests.flows.simulated import ENGINES, SHARDS, Simulation
from tests.flows.tools import same_result
from tests.matrix import in_verify
from yatt_core.collection.collector import Collector
from yatt_core.experience.admission import load_admitted_batch
from yatt_core.experience.batch import load_table
from yatt_core.experience.table import is_scored
from yatt_core.prompts.codec import open_codec
from yatt_core.protocols.receipts import BatchTask, ShardReceipt, ShardTask
from yatt_core.rewards.calls import SERVICE, RewardOutcome
from yatt_core.rewards.conventions import Unit
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import NoStore
from yatt_core.tools.toolbox import Toolbox

OVERRIDES = (
    "rewards.parts=[{name: virtual, function: virtual_score, on_failure: mask}]",
    "rollout.engine.clock_factor=1.0e9",
    "guards.mostly_unscored.action=alert",
    "iterations=3",
)
FAILING = 0, 1
"""Shards of the first waves of iterations 1 and 2 that lack scores, as long as the function is out of order."""


class AtVersion(LocalStream):
    """A stream whose engine has the weights of a version."""

    def __init__(self, made: RunSpec, version: int) -> None:
        super().__init__(made)
        self._engine.update_weights({"state": np.zeros(4, np.uint8)}, version)


class OutOfOrder(RewardScorer):
    """Scores responses with a function that fails on one response to some prompts, and on all but one to the others."""

    def outcomes(self, unit: Unit, responses: Sequence[Scored]) -> list[dict[str, RewardOutcome]]:
        found = super().outcomes(unit, responses)
        down = RewardOutcome(0.0, "status 503", failed=True, cause=SERVICE)
        fails = [(one.sample == 0) != (one.prompt.index % 2 == 0) for one in responses]
        return [dict.fromkeys(one, down) if failed else one for failed, one in zip(fails, found, strict=True)]


class Controllers:
    """Collects shards for a simulated cluster, with real files and real scores.

    healthy: whether the function scores everything.
    killed_at: iteration and shard of the first wave; when it is sealed, the driver is killed before it knows.
    """

    def __init__(self, spec: RunSpec, healthy: bool, killed_at: tuple[int, int] | None) -> None:
        self._spec = spec
        self.healthy = healthy
        self._killed_at = killed_at

    def seal(self, folder: Path, task: ShardTask) -> ShardReceipt:
        place = (task.key.iteration, task.key.shard)
        fails = not self.healthy and place in [(iteration, shard) for iteration in (1, 2) for shard in FAILING]
        scores = OutOfOrder if fails and task.key.wave == 0 else RewardScorer
        with closing(Toolbox(None)) as toolbox:
            codec = open_codec(self._spec, "")
            scorer = scores(self._spec.rewards)
            collector = Collector(self._spec, folder, FewPrompts(), codec, scorer, toolbox, NoStore())
            (receipt,) = collector.collect([task], AtVersion(self._spec, task.weight_version))
        if place == self._killed_at and task.key.wave == 0:
            self._killed_at = None
            raise DriverKilled
        return receipt


class LearningCluster(Cluster):
    """A cluster whose weights follow from the samples that an update learns from."""

    def _apply(self, task: BatchTask) -> None:
        before = self.trainer.state
        super()._apply(task)
        batch = load_admitted_batch(self.folder, task)
        learned = [batch.ordinals, batch.rewards, batch.loss_mask, batch.response_tokens]
        state = hashlib.sha256(before + b"".join(each.tobytes() for each in learned)).digest()
        assert self.trainer.receipt is not None
        self.trainer.state = state
        self.trainer.receipt = replace(self.trainer.receipt, fingerprint={"weights_digest": state.hex()})


def prepared(
    folder: Path, patch: pytest.MonkeyPatch, healthy: bool = False, killed_at: tuple[int, int] | None = None
) -> tuple[Simulation, Controllers]:
    simulation = Simulation.of(folder, *OVERRIDES)
    made = simulation.cluster
    simulation.cluster = LearningCluster(made.folder, made.trace, SHARDS, ENGINES, made.every)
    with simulation.ledger() as ledger:
        controllers = Controllers(current_spec(ledger, simulation.run), healthy, killed_at)
    patch.setattr(simulation_cluster, "seal_shard", controllers.seal)
    return simulation, controllers


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Drives a run with failures that nothing disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        simulation, _ = prepared(tmp_path_factory.mktemp("quiet"), patch)
        assert simulation.drive() is not None
    return simulation


def results(simulation: Simulation) -> RunResults:
    with simulation.ledger() as ledger:
        return run_results(ledger, simulation.run)


def missing(simulation: Simulation) -> list[int]:
    """Returns the number of samples without a score by iteration."""
    counts = []
    with simulation.ledger() as ledger:
        for iteration in range(1, 4):
            shards = references_of(ledger.records.shards(simulation.run, 0, iteration))
            table = load_table(simulation.home.run_folder(simulation.run), shards)
            counts.append(int((~is_scored(table)).sum()))
    return counts


@pytest.mark.parametrize(
    ("place", "cold"),
    [("shard", False), ("learn:2", True), *in_verify(("prepare:2", False), ("committed:2", True), ("learn:3", False))],
)
def test_a_killed_run_with_failed_scores_ends_as_if_it_was_not_though_nothing_fails_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Simulation, place: str, cold: bool
) -> None:
    failed = missing(quiet)
    assert failed[0] > 0 and failed[1] > 0 and failed[2] == 0
    struck, controllers = prepared(tmp_path, monkeypatch, killed_at=(2, 1) if place == "shard" else None)
    assert struck.drive(killed_at=place) is None
    controllers.healthy = True
    struck.cluster.sealed.clear()  # what is sealed is found on disk
    ended = struck.drive(cold=cold)
    assert ended is not None and ended.state == "completed"
    assert missing(struck) == failed
    assert same_result(results(struck), results(quiet))
    with quiet.ledger() as ledger, struck.ledger() as other:
        for iteration in (1, 2):
            waves = other.records.waves(struck.run, 0, iteration)
            assert waves == ledger.records.waves(quiet.run, 0, iteration)
            assert len(waves) > 1, "further prompts have taken the place of failed scores"


def test_a_failed_score_changes_what_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Simulation
) -> None:
    """Otherwise, equal results would say nothing about failures."""
    simulation, _ = prepared(tmp_path, monkeypatch, healthy=True)
    assert simulation.drive() is not None and missing(simulation) == [0, 0, 0]
    assert not same_result(results(simulation), results(quiet))
