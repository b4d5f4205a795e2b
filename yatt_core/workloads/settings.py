"""What is wrong with a workload's settings, as the spec's own mistakes are told: one line each, with the key where it stands.

Consumes the facts that a class gets, and the pydantic model of its settings. Produces the settings, or an error with a line for
each mistake: `workload.settings.KEY: ...`, or `workload.tunable.KEY: ...` for a key that stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.mistakes import Mistake, mistakes_in
from yatt_core.workloads.contract import RunFacts

SETTINGS = "workload.settings"
TUNABLE = "workload.tunable"
Settings = TypeVar("Settings", bound=BaseModel)


def read_settings(model: type[Settings], facts: RunFacts) -> Settings:
    """Returns the settings of a workload. Raises `ConfigurationError` with one line per mistake."""
    try:
        return model.model_validate(dict(facts.settings))
    except ValidationError as error:
        raise settings_error(error, facts.tunable, model) from None


def settings_error(
    error: ValidationError, tunable: Set[str], model: type[BaseModel] | None = None
) -> ConfigurationError:
    """Returns an error with one line per mistake.

    tunable: the settings that stand in `workload.tunable`.
    model: the one that was validated; None if it is unknown, so that places have the names of union members too.
    """
    if model is None:
        found = [Mistake(tuple(item["loc"]), item["msg"].removeprefix("Value error, ")) for item in error.errors()]
    else:
        found = list(mistakes_in(error, model))
    known = () if model is None else model.model_fields.keys()
    return ConfigurationError("\n".join(_line(mistake, tunable, known) for mistake in found))


def concerns_settings(error: ValidationError, settings: Mapping[str, Any]) -> bool:
    """Returns whether it is a workload's settings that a model has refused, and not other values, which the class has made."""
    return all(_is_in(settings, item["loc"], item["type"], item["input"]) for item in error.errors())


def _is_in(settings: Mapping[str, Any], place: tuple[int | str, ...], kind: str, value: Any) -> bool:
    """Returns whether a value that was refused, at a place of what was validated, stands there in the settings."""
    if not place or (kind == "missing" and len(place) == 1):
        return isinstance(value, Mapping) and value.keys() == settings.keys()
    if place[0] not in settings:
        return False
    own = settings[str(place[0])]
    return len(place) > 1 or (type(value) is type(own) and value == own)


def _line(mistake: Mistake, tunable: Set[str], known: Set[str] | tuple[()]) -> str:
    place = mistake.place
    text = mistake.text
    key, colon, rest = text.partition(": ")
    if not place and colon and key in known:  # a check of several keys begins its text with the one to change
        place = (key,)
        text = rest
    section = TUNABLE if place and place[0] in tunable else SETTINGS
    return f"{'.'.join(map(str, (section, *place)))}: {text}"
