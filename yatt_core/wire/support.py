"""The support of sampled tokens: which tokens the sampler had left at each position, as flat arrays.

Consumes and produces the sets of token ids, one set per token, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.wire.ragged import Array, Int64, offsets_of, ragged_positions

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """The supports of T tokens.

    tokens: [sum(sizes)], the ids of each token's support, one support after another.
    sizes: [T]; 0 for a token that was not sampled.
    """

    tokens: Int32
    sizes: Int32

    @classmethod
    def joined(cls, parts: Sequence[Support]) -> Support:
        """Returns the supports of several sequences of tokens, one after another."""
        nothing = np.zeros(0, dtype=np.int32)
        return cls(
            np.concatenate([nothing, *(part.tokens for part in parts)]),
            np.concatenate([nothing, *(part.sizes for part in parts)]),
        )

    @classmethod
    def none(cls, count: int) -> Support:
        """Returns the supports of tokens that were not sampled."""
        return cls(np.zeros(0, dtype=np.int32), np.zeros(count, dtype=np.int32))

    @property
    def offsets(self) -> Int64:
        """Where each token's support begins, then the number of all ids: [T + 1]."""
        return offsets_of(self.sizes)

    def at(self, positions: Array | slice) -> Support:
        """Returns the supports of the tokens at these positions, in this order."""
        if isinstance(positions, slice):
            positions = np.arange(len(self.sizes))[positions]
        return Support(self.tokens[ragged_positions(self.offsets, positions)], self.sizes[positions])

    def contains(self, tokens: Int32) -> npt.NDArray[np.bool_]:
        """Returns whether each token is in its support, [T]. tokens: [T]."""
        found = np.zeros(len(self.sizes), dtype=np.bool_)
        found[np.repeat(np.arange(len(self.sizes)), self.sizes)[self.tokens == np.repeat(tokens, self.sizes)]] = True
        return found
