"""The model of a spec's section: frozen, without unknown keys, described by attribute docstrings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

KIND = "kind"
"""The key that selects one of several kinds of a section."""


class SpecModel(BaseModel):
    """A frozen section of the spec; unknown keys are errors, and so is `true` or `false` where a number is expected."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        numbers = _numbers(cls)
        return cls.with_default_kinds(
            {name: _kept(value) if name in numbers else value for name, value in tree.items()}
        )

    @classmethod
    def with_default_kinds(cls, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Gives a section without a kind the kind of its default, so that one of its keys can be set on its own."""
        kinds = {name: getattr(field.default, KIND, None) for name, field in cls.model_fields.items() if name in tree}
        return {
            name: {KIND: kinds[name], **value}
            if kinds.get(name) and isinstance(value, Mapping) and KIND not in value
            else value
            for name, value in tree.items()
        }


class _Boolean:
    """A boolean that pydantic does not read as the number 1 or 0; printed as given in an error message."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


def _kept(value: Any) -> Any:
    """Returns the value of a number's key, in which a boolean stays one."""
    match value:
        case bool():
            return _Boolean(value)
        case list() | tuple():
            return [_kept(item) for item in value]
        case Mapping():
            return {name: _kept(item) for name, item in value.items()}
    return value


@cache
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """Returns a model's fields that hold numbers, alone or in a list or mapping, and no booleans."""
    types = {name: set(_leaves(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, found in types.items() if found & {int, float} and bool not in found)


def _leaves(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _leaves(argument)
