"""A table of vectors whose rows are divided over the ranks.

Consumes numbers of rows; produces their vectors, on every rank, and takes gradients of them, of which each rank keeps those of
its own rows. A sum that fetches vectors has one term that is not zero, so it is exact: what is fetched does not depend on the
number of ranks.
"""

from __future__ import annotations

import numpy as np
import torch

from yatt_core.workloads.contract import Ranks

CHUNK = 65_536
"""Rows that are drawn from one generator, so that initial vectors do not depend on the number of ranks."""


class DividedRows:
    """This rank's rows, and access to the others'."""

    def __init__(self, ranks: Ranks, values: torch.Tensor, total: int) -> None:
        self._ranks = ranks
        self.span = ranks.share(total)
        self.values = values
        self.total = total

    def fetch(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns rows, [numbers, width], the same on every rank. All ranks must ask for the same numbers, [numbers]."""
        own = self._own(numbers)
        found = self.values.new_zeros(len(numbers), self.values.shape[1])
        found[own] = self.values[numbers[own] - self.span.start]
        return self._ranks.sum(found)

    def own_part(self, numbers: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        """Returns the gradient of this rank's rows, of the shape of `values`.

        numbers: of rows, each once.
        gradients: [numbers, width].
        """
        own = self._own(numbers)
        part = torch.zeros_like(self.values)
        part[numbers[own] - self.span.start] = gradients[own]
        return part

    def _own(self, numbers: torch.Tensor) -> torch.Tensor:
        return (numbers >= self.span.start) & (numbers < self.span.stop)


def initial_rows(span: range, width: int, extent: float, seed: int) -> torch.Tensor:
    """Returns initial vectors of some rows, between -extent and extent; a row depends on its number and the seed only."""
    values = torch.empty(len(span), width)
    for first in range(span.start - span.start % CHUNK, span.stop, CHUNK):
        begin = max(span.start, first)
        end = min(span.stop, first + CHUNK)
        # A generator fills rows in order: those behind `end` need not be drawn.
        drawn = np.random.default_rng([seed, first // CHUNK]).uniform(-extent, extent, (end - first, width))
        values[begin - span.start : end - span.start] = torch.from_numpy(drawn[begin - first :])
    return values
