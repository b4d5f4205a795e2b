"""Compares what the rollout engines hold with what the trainer's ranks hold, rectangle by rectangle, by digests.

Consumes handles of actors; changes nothing. Every actor answers alone, so that the calls of another process to the same
ranks, such as the driver's, cannot get in each other's way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.protocols.transfers import HeldWeights
from yatt_core.wire.parts import Rectangle

Ask = Callable[[list[Any], str, list[str]], list[HeldWeights]]
"""(references, what is awaited, names of the actors that answer) -> values."""
Actors = Mapping[str, Any]
"""Handles of actors of one role, by the actors' names."""
TENSORS_NAMED = 3


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """What a comparison found about one engine.

    version: version of its weights.
    compared: number of rectangles compared; 0 if the engine holds another version or cannot be compared.
    differing: names of tensors that differ from the trainer's, sorted.
    """

    name: str
    version: int
    compared: int
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """What a comparison found.

    trainer_version: version of the ranks' weights; None if the ranks hold different ones.
    """

    trainer_version: int | None
    engines: tuple[EngineWeights, ...]

    @property
    def differing(self) -> tuple[EngineWeights, ...]:
        """The engines that hold other weights of the same version than the trainer."""
        return tuple(engine for engine in self.engines if engine.differing)

    @property
    def settled(self) -> bool:
        """True unless the ranks or an engine held different versions, as while new weights are made or sent."""
        return {engine.version for engine in self.engines} <= {self.trainer_version}


def compare_weights(ask: Ask, term: int, ranks: Actors, engines: Actors) -> WeightComparison:
    """Compares the engines with the ranks. Raises what `ask` raises."""
    asked = [rank.held_weights.remote(term) for rank in ranks.values()]
    of_ranks = ask(asked, "the digests of the trainer's ranks", list(ranks))
    versions = {held.version for held in of_ranks}
    version = versions.pop() if len(versions) == 1 else None
    wanted: dict[Rectangle, str] = {}
    for held in of_ranks:
        wanted |= held.digests or {}
    asked = [engine.held_weights.remote(term, list(wanted)) for engine in engines.values()]
    of_engines = ask(asked, "the digests of the rollout engines", list(engines))
    found = [_compared(name, version, wanted, held) for name, held in zip(engines, of_engines, strict=True)]
    return WeightComparison(version, tuple(found))


def _compared(name: str, version: int | None, wanted: dict[Rectangle, str], held: HeldWeights) -> EngineWeights:
    if held.version != version or not held.digests:
        return EngineWeights(name, held.version, 0)
    differing = {rectangle.name for rectangle, digest in wanted.items() if held.digests[rectangle] != digest}
    return EngineWeights(name, held.version, len(wanted), tuple(sorted(differing)))


def named(engines: Sequence[EngineWeights]) -> str:
    """Returns a text that names engines and the first tensors in which each differs."""
    return "; ".join(
        f"{engine.name} in {len(engine.differing)} tensors, such as {', '.join(engine.differing[:TENSORS_NAMED])}"
        for engine in engines
    )
