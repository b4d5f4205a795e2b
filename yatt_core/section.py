"""The model of a spec's section: frozen, without unknown keys, described by attribute docstrings.

Also the base of every model of given values, which takes no boolean for a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

KIND = "kind"
"""The key that selects one of several kinds of a section."""


@dataclass(frozen=True, slots=True)
class DefaultKind:
    """Marks a field without a default: the kind of a section that names none."""

    kind: str


class GivenModel(BaseModel):
    """A model in which `true` and `false` are no numbers."""

    @model_validator(mode="before")
    @classmethod
    def _guard_booleans(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        numeric = _numeric_keys(cls)
        return {name: _guarded(value) if name in numeric else value for name, value in tree.items()}


class SpecModel(GivenModel):
    """A frozen section of the spec; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, tree: Any) -> Any:
        return cls.with_default_kinds(tree) if isinstance(tree, Mapping) else tree

    @classmethod
    def with_default_kinds(cls, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Gives a section without a kind the kind of its default, so that one of its keys can be set on its own."""
        kinds = {name: _default_kind(field) for name, field in cls.model_fields.items() if name in tree}
        return {
            name: {KIND: kinds[name], **value}
            if kinds.get(name) and isinstance(value, Mapping) and KIND not in value
            else value
            for name, value in tree.items()
        }


def _default_kind(field: FieldInfo) -> str | None:
    marked = [mark.kind for mark in field.metadata if isinstance(mark, DefaultKind)]
    return marked[0] if marked else getattr(field.default, KIND, None)


class _Boolean:
    """A boolean that pydantic does not read as the number 1 or 0; printed as a file has it in an error message."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __repr__(self) -> str:
        return str(self._value).lower()


def _guarded(value: Any) -> Any:
    """Wraps the booleans in a value."""
    match value:
        case bool():
            return _Boolean(value)
        case list() | tuple():
            return [_guarded(item) for item in value]
        case Mapping():
            return {name: _guarded(item) for name, item in value.items()}
    return value


@cache
def _numeric_keys(model: type[BaseModel]) -> frozenset[str]:
    """Returns a model's keys that hold numbers, alone or in a list or mapping, and neither booleans nor sections."""
    found = {field.alias or name: set(types_in(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(
        key
        for key, types in found.items()
        if types & {int, float} and not any(each is bool or issubclass(each, BaseModel) for each in types)
    )


def types_in(annotation: Any) -> Iterator[type[Any]]:
    """Yields the types of which an annotation consists."""
    if isinstance(annotation, type):
        yield annotation
    for argument in get_args(annotation):
        yield from types_in(argument)
