"""The actors between which weights are sent or compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SyncParties:
    """Handles of all trainer ranks and of some engines, each with their names for messages."""

    ranks: Sequence[Any]
    engines: Sequence[Any]
    rank_names: list[str]
    engine_names: list[str]

    @property
    def names(self) -> list[str]:
        """The names of all parties, the ranks' first."""
        return self.rank_names + self.engine_names

    @property
    def handles(self) -> list[Any]:
        """The handles of all parties, the ranks' first."""
        return [*self.ranks, *self.engines]
