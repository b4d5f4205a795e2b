"""Who is charged for a run, and at which of the prices."""

from __future__ import annotations

from pydantic import Field

from yatt_core.spec.base import SpecModel

NAME = r"^[\w][\w .@/+-]{0,79}$"
"""Names of projects and owners."""


class BillingSpec(SpecModel):
    """Who is charged for the run, in `yatt costs` and in the budgets of the price file. It changes no result."""

    project: str | None = Field(default=None, pattern=NAME)
    """Project that the run belongs to. `null`: none."""
    owner: str | None = Field(default=None, pattern=NAME)
    """Person who is charged. `null`: whoever started the run."""
    spot: bool = False
    """The devices are charged at the price file's `spot_per_hour`."""
