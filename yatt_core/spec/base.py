"""What all parts of a spec share: frozen, no unknown keys, descriptions taken from the attribute docstrings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SpecModel(BaseModel):
    """A frozen part of the spec; an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
