"""The bodies of requests: JSON whose values have exactly the types of the schema, and forms, whose values are texts.

Nothing is read as a number or a flag that is not one: `{"to": false}` is no request to roll back to iteration 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ops.web.context import LARGEST
from yatt_core.section import types_in

Whole = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
"""The number of an iteration, a branch or a term."""
Flag = Annotated[bool, Field(strict=True)]
FLAGS = {"true": True, "on": True, "false": False}
"""What the value of a flag is in a form; browsers send `on` for a ticked box."""


class Body(BaseModel):
    """A request's body, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FormTexts(BaseModel):
    """The first base of the model of a form: reads numbers and flags; a field that was left empty has its default."""

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        read = {name: _read(value, _type_of(cls, name)) for name, value in given.items()}
        return {name: value for name, value in read.items() if value is not None}


def _type_of(model: type[BaseModel], name: str) -> type:
    """Returns int, float or bool for a field of that type, with or without None; str for any other."""
    field = model.model_fields.get(name)
    types = set() if field is None else set(types_in(field.annotation)) - {NoneType}
    return types.pop() if len(types) == 1 and types <= {int, float, bool} else str


def _read(value: Any, kind: type) -> Any:
    """Returns a text as a value of the type; as it is if it is none, so that it is refused, and None if it is empty."""
    if not isinstance(value, str) or kind is str:
        return value
    if not value:
        return None
    if kind is bool:
        return FLAGS.get(value, value)
    try:
        return kind(value)
    except ValueError:
        return value
