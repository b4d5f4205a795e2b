"""Asks actors how busy their devices were. Nothing depends on the answer, so that no actor is waited for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

ANSWER_SECONDS = 2.0


def device_use(actors: Mapping[str, Any], term: int) -> dict[str, float]:
    """Returns how busy each actor's device was since the last call, in percent, by the actor's name.

    Actors that are busy, lost or do not know are left out.
    """
    asked = {actor.device_use.remote(term): name for name, actor in actors.items()}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
    found = {}
    for reference in answered:
        try:
            use = ray.get(reference)
        except ray.exceptions.RayError:  # whoever needs the actor next notices its loss
            continue
        if use is not None:
            found[asked[reference]] = float(use)
    return found
