"""Prompts, and the endless seeded stream from which a run draws them.

Consumes the mixture of `DataSpec`, the spec's seed and a `Cursor`. Produces `PromptRef`s and the next cursor. A
draw loads nothing: the source of an ordinal and the place of a position in its source's order are functions of
counters and the seed, so two short draws equal one long draw, in any process.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed
from yatt_core.prompts.prompt import Prompt as Prompt
from yatt_core.protocols.receipts import PromptRef
from yatt_core.spec.sections.data import DataSpec


def media_of(prompts: Sequence[Prompt]) -> tuple[tuple[str, ...], ...]:
    """Returns the addresses of each prompt's images; an empty tuple if no prompt has any images."""
    media = tuple(prompt.media for prompt in prompts)
    return media if any(media) else ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a run in its stream: the ordinal of its next prompt, and the number drawn from each source."""

    ordinal: int
    drawn: tuple[int, ...]

    @classmethod
    def start(cls, data: DataSpec) -> Cursor:
        """Returns the cursor before the first draw."""
        return cls(0, (0,) * len(data.sources))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the control state."""
        return {"ordinal": self.ordinal, "drawn": list(self.drawn)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cursor:
        """Returns the cursor that `to_json` wrote."""
        return cls(int(value["ordinal"]), tuple(int(count) for count in value["drawn"]))


def draw(data: DataSpec, seed: int, cursor: Cursor, count: int) -> tuple[tuple[PromptRef, ...], Cursor]:
    """Returns the next prompts of the stream, and the cursor after them.

    Raises `ConfigurationError` if the cursor belongs to a different number of sources.
    """
    if len(cursor.drawn) != len(data.sources):
        raise ConfigurationError(
            f"data.sources: the run has drawn from {len(cursor.drawn)} sources, but the spec names "
            f"{len(data.sources)}; the number of sources cannot change within a run"
        )
    bounds = list(itertools.accumulate(source.weight for source in data.sources))
    drawn = list(cursor.drawn)
    references = []
    for ordinal in range(cursor.ordinal, cursor.ordinal + count):
        source = _pick(bounds, stable_seed("source", seed, ordinal))
        references.append(PromptRef(ordinal, source, drawn[source]))
        drawn[source] += 1
    return tuple(references), Cursor(cursor.ordinal + count, tuple(drawn))


def _pick(bounds: Sequence[float], noise: int) -> int:
    """Returns the source whose part of the interval [0, bounds[-1]) contains a 64-bit random number after scaling."""
    return min(bisect.bisect_right(bounds, noise / 2**64 * bounds[-1]), len(bounds) - 1)


def locate(position: int, size: int) -> tuple[int, int]:
    """Returns the epoch of a position in a source of `size` prompts, and the place within that epoch."""
    return divmod(position, size)


def epoch_order(seed: int, source: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the order of a source's prompts in an epoch: [size], a permutation.

    Sorts raw 64-bit output, because numpy keeps the streams of its bit generators stable between versions, but
    not the results of its methods.
    """
    noise = np.random.Philox(key=stable_seed("epoch", seed, source, epoch)).random_raw(size)
    return np.argsort(noise, kind="stable")


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divides a total into integer shares by weight, by largest remainder; ties go to the earlier source."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return tuple(shares)
