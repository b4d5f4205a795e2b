"""A constant entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.entropy.base import EntropyMethod


class EntropyBonus(EntropyMethod):
    """An entropy bonus (arXiv 1602.01783): coefficient x mean token entropy is added to the objective."""

    kind: Literal["bonus"] = "bonus"
    coefficient: PositiveFloat
    """Coefficient of the mean token entropy."""

    def bonus(self, state: Mapping[str, float]) -> float:
        """See `EntropyMethod`."""
        return self.coefficient
