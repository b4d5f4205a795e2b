"""How the process of a kind of engine is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from yatt_core.engine_environments import EngineKind


@dataclass(frozen=True, slots=True)
class Launch:
    """How the process of a kind of engine is started.

    kind: the engine.
    module: what the process runs, with the engine's Python: its `main(descriptor, parent)` calls `answering.serve`.
    variables: returns the environment variables of the process, given whether the engine runs on processors, this node's
        address if it spans several, and whether responses must have the same bits in every batch.
    """

    kind: EngineKind
    module: str
    variables: Callable[[bool, str, bool], Mapping[str, str]]
