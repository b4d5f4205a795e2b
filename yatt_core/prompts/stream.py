"""Prompts, and the endless seeded stream from which a run draws them.

Consumes the mixture of `DataSpec`, the spec's seed and a `Cursor`. Produces `PromptRef`s and the next cursor. A
draw loads nothing: the source of an ordinal and the place of a position in its source's order are functions of
counters and the seed, so two short draws equal one long draw, in any process.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed
from yatt_core.prompts.curriculum import Curriculum, PromptOutcome
from yatt_core.prompts.prompt import Prompt as Prompt
from yatt_core.protocols.receipts import PromptPool, PromptRef
from yatt_core.spec.sections.data import DataSpec


def media_of(prompts: Sequence[Prompt]) -> tuple[tuple[str, ...], ...]:
    """Returns the addresses of each prompt's images; an empty tuple if no prompt has any images."""
    media = tuple(prompt.media for prompt in prompts)
    return media if any(media) else ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a run in its stream: all that determines the next draws, besides spec and inputs.

    ordinal: ordinal of the next prompt.
    drawn: position in the order of each source, or of each pool of a curriculum.
    curriculum: the state of the curriculum; None without one.
    """

    ordinal: int
    drawn: tuple[int, ...]
    curriculum: Curriculum | None = None

    @classmethod
    def start(cls, data: DataSpec) -> Cursor:
        """Returns the cursor before the first draw."""
        return cls(0, (0,) * len(data.sources))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the control state."""
        plain: dict[str, Any] = {"ordinal": self.ordinal, "drawn": list(self.drawn)}
        return plain if self.curriculum is None else plain | {"curriculum": self.curriculum.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cursor:
        """Returns the cursor that `to_json` wrote."""
        curriculum = Curriculum.from_json(value["curriculum"]) if "curriculum" in value else None
        return cls(int(value["ordinal"]), tuple(int(count) for count in value["drawn"]), curriculum)

    def under(self, data: DataSpec, pools: Sequence[PromptPool]) -> Cursor:
        """Returns the cursor for a spec that may have begun or ended a curriculum.

        pools: the pools of the run's inputs; empty without a curriculum.
        """
        if data.curriculum is None:
            return replace(self, curriculum=None)
        if self.curriculum is not None:
            return self
        drawn = self.drawn if any(self.drawn) else (0,) * len(pools)
        weights = [source.weight for source in data.sources]
        return replace(self, drawn=drawn, curriculum=Curriculum.start(data.curriculum, pools, weights))

    def learned(self, data: DataSpec, seed: int, iteration: int, results: Iterable[tuple[PromptRef, float]]) -> Cursor:
        """Returns the cursor with the curriculum's state after an iteration.

        results: drawn prompts, and the fraction of correct responses to each.
        """
        if data.curriculum is None or self.curriculum is None:
            return self
        sizes = [pool.size for pool in self.curriculum.pools]
        outcomes = [
            PromptOutcome(ref.source, row_at(seed, ref.source, ref.position, sizes[ref.source]), success)
            for ref, success in results
        ]
        return replace(self, curriculum=self.curriculum.after(data.curriculum, iteration, outcomes))


def draw(data: DataSpec, seed: int, cursor: Cursor, count: int) -> tuple[tuple[PromptRef, ...], Cursor]:
    """Returns the next prompts of the stream, and the cursor after them.

    Data without sources, of a workload of one's own, have a single entry: the number of the iteration's draw.

    Raises `ConfigurationError` if the cursor belongs to a different number of sources.
    """
    if not data.sources:
        return (PromptRef(cursor.ordinal, 0, cursor.ordinal),), replace(cursor, ordinal=cursor.ordinal + 1)
    curriculum = cursor.curriculum
    weights = [source.weight for source in data.sources] if curriculum is None else curriculum.shares
    if len(cursor.drawn) != len(weights):
        raise ConfigurationError(
            f"data.sources: the run has drawn from {len(cursor.drawn)} sources, but the spec names "
            f"{len(weights)}; the number of sources cannot change within a run"
        )
    bounds = list(itertools.accumulate(weights))
    drawn = list(cursor.drawn)
    references = []
    for ordinal in range(cursor.ordinal, cursor.ordinal + count):
        source = _pick(bounds, stable_seed("source", seed, ordinal))
        if curriculum is not None:
            size = curriculum.pools[source].size
            while curriculum.rests(source, row_at(seed, source, drawn[source], size)):
                drawn[source] += 1
        references.append(PromptRef(ordinal, source, drawn[source]))
        drawn[source] += 1
    return tuple(references), replace(cursor, ordinal=cursor.ordinal + count, drawn=tuple(drawn))


def _pick(bounds: Sequence[float], noise: int) -> int:
    """Returns the source whose part of the interval [0, bounds[-1]) contains a 64-bit random number after scaling."""
    found = min(bisect.bisect_right(bounds, noise / 2**64 * bounds[-1]), len(bounds) - 1)
    return bisect.bisect_left(bounds, bounds[found])  # never a source without weight at the end


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


def row_at(seed: int, source: int, position: int, size: int) -> int:
    """Returns the row of a source, or pool, of `size` prompts at a position in its order."""
    epoch, place = locate(position, size)
    return int(_kept_order(seed, source, epoch, size)[place])


@functools.lru_cache(maxsize=32)
def _kept_order(seed: int, source: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    return epoch_order(seed, source, epoch, size)


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divides a total into integer shares by weight, by largest remainder; ties go to the earlier source."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return tuple(shares)
