"""What all parts of a spec share: frozen, no unknown keys, descriptions taken from the attribute docstrings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

LONGEST_CALL_SECONDS = 86_400.0
"""A day: the longest time limit of one call of a user's function. Timers of the system take no number at all."""


class SpecModel(BaseModel):
    """A frozen part of the spec; an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
