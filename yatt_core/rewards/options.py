"""Options of the functions included in YATT as models, so that mistakes in them are reported before a run.

A function marked with `built_in` receives its options as one keyword argument, `options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.section import GivenModel

OPTIONS = "options"
MODEL = "yatt_options"
BLAMES = "yatt_blames_response"
Function = TypeVar("Function", bound=Callable[..., Any])


class Options(GivenModel):
    """The options of a function; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def built_in(model: type[Options], blames_response: bool = False) -> Callable[[Function], Function]:
    """Marks a function that takes its options as a model.

    blames_response: a call that takes too long counts as a response that cannot be read, not as a failure.
    """

    def mark(function: Function) -> Function:
        for name, value in ((MODEL, model), (BLAMES, blames_response)):
            setattr(function, name, value)
        return function

    return mark


def read_options(function: Callable[..., Any], given: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Returns the keyword arguments for a function's options.

    Raises `ConfigurationError`, with one line per mistake, if the function has a model that does not accept them.
    """
    model: type[Options] | None = getattr(function, MODEL, None)
    if model is None:
        return given
    try:
        return {OPTIONS: model.model_validate(dict(given))}
    except ValidationError as error:
        lines = []
        for item in error.errors():
            key = ".".join(map(str, (OPTIONS, *item["loc"])))
            said = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                known = sorted(field.alias or name for name, field in model.model_fields.items())
                near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
                said = f"unknown option; {f'did you mean {near[0]!r}?' if near else 'known: ' + ', '.join(known)}"
            lines.append(f"{place}: {key}: {said}")
        raise ConfigurationError("\n".join(lines)) from None


def blames_response(function: Callable[..., Any]) -> bool:
    """Returns whether a call that takes too long is the response's fault."""
    return bool(getattr(function, BLAMES, False))
