"""The base of all sections of a spec: frozen, without unknown keys, described by attribute docstrings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

LONGEST_CALL_SECONDS = 86_400.0
"""One day: the maximum time limit of a call of a user's function. The system's timers do not accept arbitrarily
large numbers."""


class SpecModel(BaseModel):
    """A frozen section of the spec; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
