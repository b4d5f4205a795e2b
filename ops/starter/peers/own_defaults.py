"""YATT's own default of a key of the spec, read from its models: pure functions.

Consumes the place of a key, and the tree that it is written into, whose `kind`s choose among models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from yatt_core.spec import RunSpec

NONE = object()
"""Stands for a key that has no default, or whose section is absent by default."""


def default_of(path: str, tree: Mapping[str, Any]) -> Any:
    """Returns the default of a key as plain data; `NONE` if it has none.

    path: the keys that lead to it, joined by dots.
    """
    *above, last = path.split(".")
    model: type[BaseModel] = RunSpec
    node: Any = tree
    parent: Any = NONE
    for part in above:
        parent = _default(model, part)
        node = node.get(part, {}) if isinstance(node, Mapping) else {}
        chosen = _model_of(model, part, node.get("kind") if isinstance(node, Mapping) else None)
        if chosen is None:
            return NONE
        model = chosen
    if last == "kind" and above:
        return parent.get("kind", NONE) if isinstance(parent, dict) else NONE
    return _default(model, last)


def _default(model: type[BaseModel], name: str) -> Any:
    field = model.model_fields.get(name)
    if field is None:
        return NONE
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return NONE
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, tuple) else value


def _model_of(model: type[BaseModel], name: str, kind: Any) -> type[BaseModel] | None:
    """Returns the model of a section: the only one, or that of the kind, or else of the section's default."""
    field = model.model_fields.get(name)
    if field is None:
        return None
    models = list(_models_in(field.annotation))
    if kind is None:
        default = field.get_default(call_default_factory=True, validated_data={})
        return type(default) if isinstance(default, BaseModel) else next(iter(models), None)
    if len(models) == 1:
        return models[0]
    return next(
        (one for one in models if "kind" in one.model_fields and one.model_fields["kind"].default == kind), None
    )


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
