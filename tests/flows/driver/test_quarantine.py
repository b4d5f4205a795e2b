"""A node that loses actors again and again is avoided, unless the run gets on in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.simulated import BranchRunActors, Simulation
from yatt_core.errors import LostActorError
from yatt_core.run_actors.actor_registry import ActorFailure

NODE = "h2"


@pytest.mark.parametrize(
    ("failing", "quarantined"), [((1, 1, 1), True), ((1, 2, 3), False)], ids=["without progress", "with progress"]
)
def test_a_node_is_quarantined_for_what_it_lost_since_something_new_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...], quarantined: bool
) -> None:
    """failing: the iterations whose updates lose an actor, each once for every time that it is named."""
    simulation = Simulation.of(tmp_path, "iterations=4")
    left = list(failing)
    avoided = set[str]()
    start: Callable[[BranchRunActors], tuple[str, ...]] = BranchRunActors.start
    learn = BranchRunActors.learn

    def starting(actors: BranchRunActors) -> tuple[str, ...]:
        avoided.update(actors.avoid_nodes)
        return start(actors)

    def learning(actors: BranchRunActors, task: Any, prepared: Any) -> Any:
        if left and task.key.iteration == left[0]:
            del left[0]
            actors.failures.append(ActorFailure("trainer-0", NODE, "its actor died"))
            raise LostActorError("trainer-0: its actor died")
        return learn(actors, task, prepared)

    monkeypatch.setattr(BranchRunActors, "start", starting)
    monkeypatch.setattr(BranchRunActors, "learn", learning)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 4)
    with simulation.ledger() as ledger:
        lost = [event.body["node"] for event in ledger.events.of_kind(simulation.run, "actor_lost")]
        found = [event.body["nodes"] for event in ledger.events.of_kind(simulation.run, "quarantined")]
    assert lost == [NODE] * 3 and simulation.cluster.clock.seconds < 3600.0
    assert found == ([[NODE]] if quarantined else [])
    assert avoided == ({NODE} if quarantined else set())
