"""Finds placement policies: the built-in ones, entry points of the group `yatt.placement`, and `package.module:name`.

A custom policy is a class with one method (`seen.PlacementPolicy`); it is called with the
`placement` section of the spec and returns the policy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text, find_function
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.seen import PlacementPolicy
from yatt_core.spec.sections.placement import PlacementSpec

GROUP = "yatt.placement"


def find_policy(placement: PlacementSpec, constants_known: bool) -> PlacementPolicy:
    """Returns the policy that a spec names.

    Raises `ConfigurationError` for an unknown name, suggesting the nearest one, and if the entry point does not
    return a policy.

    constants_known: the engines report their time constants, so that none have to be fitted.
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
    place = f"placement.mode: {placement.mode!r} is not one of {', '.join(own)}; {hint}"
    make = find_function(placement.mode, GROUP, place)
    try:
        policy = make(placement)
    except (Exception, SystemExit) as error:  # any error of a custom policy is reported as its own
        raise ConfigurationError(
            f"placement.mode: {placement.mode!r} cannot be created: {failure_text(error)}"
        ) from error
    if not callable(getattr(policy, "plan", None)):
        raise ConfigurationError(
            f"placement.mode: {placement.mode!r} returns {type(policy).__name__}, which has no method plan"
        )
    found: PlacementPolicy = policy
    return found
