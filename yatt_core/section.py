"""The model of a spec's section: frozen, without unknown keys, described by attribute docstrings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

KIND = "kind"
"""The key that selects one of several kinds of a section."""


class SpecModel(BaseModel):
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
        kinds = {name: getattr(field.default, KIND, None) for name, field in cls.model_fields.items() if name in tree}
        return {
            name: {KIND: kinds[name], **value}
            if kinds.get(name) and isinstance(value, Mapping) and KIND not in value
            else value
            for name, value in tree.items()
        }
