"""Asks actors how busy their devices were and what they hold. No result depends on it, so that none is waited for long."""

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
    counts = {TRAINER: spec.trainer.engine.ranks}
    if spec.samples_responses:
        controllers = spec.controllers.count if spec.controllers.per == "run" else NAMED_CONTROLLERS
        endpoints = len(endpoint_judges(spec))
        counts |= {ROLLOUT: spec.rollout.engine.instances, CONTROLLER: controllers, ENDPOINT: endpoints}
    return (DRIVER, *(f"{role}-{number}" for role, count in counts.items() for number in range(count)))


def forget_use(actors: Mapping[str, Any], term: int) -> None:
    """Has actors begin new readings, without waiting for those that are busy."""
    with spent(RAY, "what processes use"):
        for actor in actors.values():
            actor.process_use.remote(term)


def process_use(actors: Mapping[str, Any], term: int) -> dict[str, ProcessUse]:
    """Returns what each actor uses, by its name; actors that are busy or lost are left out.

    What one of them has spent until it answers, too late, is in no reading.
    """
    found = {}
    with spent(RAY, "what processes use"):
        asked = {actor.process_use.remote(term): name for name, actor in actors.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        for reference in answered:
            try:
                found[asked[reference]] = ray.get(reference)
            except ray.exceptions.RayError:  # whoever needs the actor next notices its loss
                continue
    return found
