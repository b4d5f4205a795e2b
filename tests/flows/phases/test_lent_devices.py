"""The trainer's devices generate while it waits, and only then; no bit depends on it, wherever a driver dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.phases import ahead, tasks
from tests.flows.phases.test_ahead import finish
from tests.flows.simulated import BranchRunActors, Simulation
from tests.flows.tools import same_result
from yatt_core.placement.actions import ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, ShardReceipt, ShardTask, UpdateReceipt


class Actors:
    """Notes which instances are kept free."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def keep_instances(self, instances: Any) -> None:
        self._said.append(tuple(instances))


@pytest.mark.parametrize("lends", [True, False])
def test_they_are_kept_while_it_learns_and_lent_once_it_waits(monkeypatch: pytest.MonkeyPatch, lends: bool) -> None:
    said: list[Any] = []
    placement: Any = SimpleNamespace(lends=lends)
    spec = SimpleNamespace(lent_instances=(0, 1))
    session: Any = SimpleNamespace(
        actors=Actors(said), context=SimpleNamespace(spec=spec), ahead={2: SimpleNamespace(after=lambda state: state)}
    )
    state: Any = SimpleNamespace(iteration=1, ahead=lambda spec: 3)
    monkeypatch.setattr(ahead, "_turn", lambda session, number: session.ahead.get(number))
    monkeypatch.setattr(ahead, "place", lambda *_: said.append("place") or placement)
    monkeypatch.setattr(ahead, "begin_ahead", lambda *_: said.append("begin"))
    monkeypatch.setattr(ahead, "collect_ahead", lambda *_: said.append("wait"))
    monkeypatch.setattr(ahead, "Turn", lambda *_: None)
    monkeypatch.setattr(ahead, "InFlight", lambda *_: None)
    monkeypatch.setattr(ahead, "sorted", lambda _: [], raising=False)
    begun = ahead.start_ahead(session, state)
    said.append("learn")
    ahead.finish_ahead(session, state, begun)
    assert said == ["place", (0, 1), "begin", "learn", *([()] if lends else []), "wait"]


def test_without_lent_instances_nobody_is_asked() -> None:
    session: Any = SimpleNamespace(context=SimpleNamespace(spec=SimpleNamespace(lent_instances=())))
    tasks.keep_trainer_devices(session)
    tasks.lend_trainer_devices(session, SimpleNamespace(lends=True))  # type: ignore[arg-type]


LAG = ("asynchrony.lag=1", "rollout.engine.instances=2", "iterations=6", "checkpoints.every=3")
KILLED_AT = 3
IDLE_FROM = 2
"""The trainer's version from which on engines have next to nothing to do, so that lending its device brings nothing."""


class Seen:
    """Watches the actors of a run with two instances, the first of which has the trainer's device.

    learning, waiting: the instances that are kept free of work while the trainer learns, and while it waits, by the iteration
        that is generated beside it.
    """

    def __init__(self, simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learning: dict[int, tuple[int, ...]] = {}
        self.waiting: dict[int, tuple[int, ...]] = {}
        cluster = simulation.cluster
        learn = BranchRunActors.learn
        collect = BranchRunActors.collect

        def learning(actors: BranchRunActors, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
            if cluster.collection is not None:
                self.learning[cluster.collection.waiting[0].key.iteration] = actors.kept
            return learn(actors, task, prepared)

        def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
            iteration = tasks[0].key.iteration
            if 1 <= cluster.trainer.version == iteration - 1:
                self.waiting[iteration] = actors.kept
            return collect(actors, tasks, *given)

        def usage(actors: BranchRunActors) -> tuple[Usage, ...]:
            seconds = cluster.trace.durations.collect if cluster.trainer.version < IDLE_FROM else 0.0
            return (Usage(instance=1, role=ROLLOUT, decode_s=seconds),)

        monkeypatch.setattr(BranchRunActors, "learn", learning)
        monkeypatch.setattr(BranchRunActors, "collect", collecting)
        monkeypatch.setattr(BranchRunActors, "usage", usage)


@pytest.mark.parametrize("cold", [False, True])
def test_a_run_that_lends_and_is_killed_in_learn_ends_with_the_bits_of_one_that_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    shared = finish(Simulation.of(tmp_path / "shared", *LAG))
    simulation = Simulation.of(tmp_path / "lent", *LAG, "placement.trainer=lent")
    seen = Seen(simulation, monkeypatch)
    assert simulation.drive(f"learn:{KILLED_AT}") is None
    with simulation.ledger() as ledger:
        (begun,) = ledger.records.decisions(simulation.run, 0, KILLED_AT + 1)
    if cold:
        simulation.cluster.collection = None
    assert same_result(finish(simulation, cold), shared)
    with simulation.ledger() as ledger:
        decisions = {number: ledger.records.decisions(simulation.run, 0, number)[0] for number in range(1, 7)}
    obeyed = decisions[KILLED_AT + 1]
    assert (obeyed.decision, obeyed.inputs) == (begun.decision, begun.inputs)
    lent = {number: row.decision["lent"] for number, row in decisions.items()}
    assert lent == {1: [0], 2: [0], 3: [0], 4: [0], 5: [], 6: []}
    assert seen.learning == dict.fromkeys(range(2, 7), (0,)), "the trainer has its device for itself while it learns"
    assert seen.waiting == {2: (), 3: (), 4: (), 5: (0,), 6: (0,)}
