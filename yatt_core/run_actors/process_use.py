"""Asks actors how busy their devices were, what they hold and where their time went.

No result depends on it, so that none is waited for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from yatt_core.actors.use_meter import ProcessUse
from yatt_core.guards.memory import DRIVER
from yatt_core.run_actors.actor_registry import ENDPOINT, TRAINER
from yatt_core.run_actors.controller_layout import CONTROLLER
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.spec import RunSpec
from yatt_core.spec.roles import endpoint_judges
from yatt_core.spent_time import RAY, spent

ANSWER_SECONDS = 2.0
NAMED_CONTROLLERS = 64


def process_names(spec: RunSpec) -> tuple[str, ...]:
    """Returns the names of the processes whose memory is watched: the driver's, and those of actors that have much.

    With `controllers.per: node`, only the first `NAMED_CONTROLLERS` controllers are among them.
    """
    counts = {TRAINER: spec.trainer.engine.ranks, ROLLOUT: spec.engine_instances}
    if spec.has.controllers:
        controllers = spec.controllers.count if spec.controllers.per == "run" else NAMED_CONTROLLERS
        endpoints = len(endpoint_judges(spec))
        counts |= {CONTROLLER: controllers, ENDPOINT: endpoints}
    return (DRIVER, *(f"{role}-{number}" for role, count in counts.items() for number in range(count)))


class UseReadings:
    """Readings of a run's actors. An answer that comes too late for one reading is part of the next, so that no time is lost."""

    def __init__(self) -> None:
        self._late: dict[Any, str] = {}
        self._found: dict[str, ProcessUse] = {}
        self._has_asked = False

    def ask(self, actors: Mapping[str, Any], term: int) -> None:
        """Begins a reading without waiting for answers, which `read` returns: they come while the caller does other work."""
        with spent(RAY, "what processes use"):
            self._hear(0.0)
            # An actor that still has to answer is not asked again, so that no more than one question waits for it.
            waiting = set(self._late.values())
            self._late |= {
                actor.process_use.remote(term): name for name, actor in actors.items() if name not in waiting
            }
            self._has_asked = True

    def read(self, actors: Mapping[str, Any], term: int) -> dict[str, ProcessUse]:
        """Returns what each actor uses, by its name, since it was asked; actors that are busy or lost are left out."""
        if not self._has_asked:
            self.ask(actors, term)
        with spent(RAY, "what processes use"):
            self._hear(ANSWER_SECONDS)
        found = self._found
        self._found = {}
        self._has_asked = False
        return found

    def forget(self, actors: Mapping[str, Any], term: int) -> None:
        """Has actors begin new readings, without waiting for those that are busy."""
        with spent(RAY, "what processes use"):
            self.drop()
            for actor in actors.values():
                actor.process_use.remote(term)

    def drop(self) -> None:
        """Expects no answers any more, as before the connection to Ray changes."""
        self._late.clear()
        self._found = {}
        self._has_asked = False

    def _hear(self, seconds: float) -> None:
        """Adds the answers that come in time: of an actor with several, all of its time and the newest of the rest."""
        if not self._late:
            return
        answered, _ = ray.wait(list(self._late), num_returns=len(self._late), timeout=seconds)
        for reference in answered:
            name = self._late.pop(reference)
            try:
                use: ProcessUse = ray.get(reference)
            except ray.exceptions.RayError:  # whoever needs the actor next notices its loss
                continue
            earlier = self._found[name].spent if name in self._found else ()
            self._found[name] = use._replace(spent=(*earlier, *use.spent))
