"""Looks up reward functions: entry points of the group `yatt.rewards`, dotted names of installed code, and files.

Consumes a `FunctionPart`. Produces its function with the part's options bound.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.installed import find_function, find_in_file
from yatt_core.rewards.code_files import read_code
from yatt_core.spec.rewards.scheme import FunctionPart

GROUP = "yatt.rewards"

RewardFunction = Callable[..., Any]
"""(prompt: Prompt, response: str, **options) -> float"""


def resolve(part: FunctionPart, run_folder: Path | None = None) -> RewardFunction:
    """Returns the part's function of (prompt, response) with its options bound.

    run_folder: folder of the run, which has its own copies of files; None before there is a run.

    Raises `ConfigurationError` for an unknown name (naming the closest ones), for a function that cannot be
    imported or called, and for options that it does not accept. Raises as `read_code` does for a file.
    """
    place = f"rewards.parts {part.name!r}: {part.described}"
    if part.function is not None:
        function = find_function(part.function, GROUP, place)
    else:
        function = find_in_file(*read_code(part, run_folder), part.attribute, place)
    try:
        inspect.signature(function).bind(None, "", **part.options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{place} cannot be called as (prompt, response{''.join(f', {key}=...' for key in part.options)}): {error}"
        ) from None
    return functools.partial(function, **part.options)
