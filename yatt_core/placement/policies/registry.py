"""Finds placement policies: those that come with YATT, and entry points of the group `yatt.placement`.

A policy of one's own is a class with one method (`seen.PlacementPolicy`); its entry point is called with the spec's section
`placement` and returns it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text, find_entry_point
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.seen import PlacementPolicy
from yatt_core.spec.sections.placement import PlacementSpec

GROUP = "yatt.placement"


def find_policy(placement: PlacementSpec, constants_known: bool) -> PlacementPolicy:
    """The policy of a spec. constants_known: the engines tell their time constants, so that none has to be fitted.

    Raises `ConfigurationError` for an unknown name, with the nearest one, and for what makes no policy of the spec.
    """
    own: dict[str, Callable[[], PlacementPolicy]] = {
        "colocate": ColocatePool,
        "split": lambda: SplitPool(placement.judges or 1),
        "dynamic": lambda: Dynamic(fit=not constants_known),
    }
    if placement.mode in own:
        return own[placement.mode]()
    near = difflib.get_close_matches(placement.mode, own, n=1)
    hint = f"did you mean {near[0]}? It" if near else "it"
    place = f"placement.mode: {placement.mode!r} is none of {', '.join(own)}; {hint}"
    make = find_entry_point(placement.mode, GROUP, place)
    try:
        policy = make(placement)
    except (Exception, SystemExit) as error:  # whatever a policy of one's own raises is that policy's failure
        raise ConfigurationError(f"placement.mode: {placement.mode!r} cannot be made: {failure_text(error)}") from error
    if not callable(getattr(policy, "plan", None)):
        raise ConfigurationError(f"placement.mode: {placement.mode!r} gives {type(policy).__name__}, which cannot plan")
    found: PlacementPolicy = policy
    return found
