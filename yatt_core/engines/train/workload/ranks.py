"""The ranks as a workload sees them: sums, everybody's arrays, and shares of rows.

Consumes a rank's place in the group. Implements the contract's `Ranks`; each sum and exchange counts as progress.
"""

from __future__ import annotations

import torch

from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.workloads.columns import decode_columns, encode_columns
from yatt_core.workloads.contract import Array, Columns, advanced

PLACE = "the arrays that ranks exchange"


class WorkloadRanks:
    """One rank's view of the group."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._collective.rank

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self._collective.ranks

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over the ranks, in place, with the same bits on every rank. Returns it."""
        summed = self._collective.sum(tensor)
        advanced()
        return summed

    def gathered(self, columns: Columns) -> tuple[dict[str, Array], ...]:
        """Returns the arrays of every rank, in the order of the ranks, on every rank."""
        found = self._collective.gathered(encode_columns(columns, PLACE))
        advanced()
        return tuple(decode_columns(bytes(data), PLACE) for data in found)

    def share(self, total: int) -> range:
        """Returns this rank's part of `total` rows."""
        first, last = (total * place // self.count for place in (self.rank, self.rank + 1))
        return range(first, last)
