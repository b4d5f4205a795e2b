"""Looks up reward functions: entry points of the group `yatt.rewards`, and dotted names of installed code.

Consumes a `FunctionPart`. Produces its function with the part's options bound.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.installed import find_function
from yatt_core.spec.rewards.scheme import FunctionPart

GROUP = "yatt.rewards"

RewardFunction = Callable[..., Any]
"""(prompt: Prompt, response: str, **options) -> float"""


def resolve(part: FunctionPart) -> RewardFunction:
    """Returns the part's function of (prompt, response) with its options bound.

    Raises `ConfigurationError` for an unknown name (naming the closest ones), for a function that cannot be
    imported or called, and for options that it does not accept.
    """
    place = f"rewards.parts {part.name!r}: function {part.function!r}"
    function = find_function(part.function, GROUP, place)
    try:
        inspect.signature(function).bind(None, "", **part.options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{place} cannot be called as (prompt, response{''.join(f', {key}=...' for key in part.options)}): {error}"
        ) from None
    return functools.partial(function, **part.options)
