"""An engine whose workers are on several nodes: where they meet, and what the node of its scheduler asks of the others.

Nodes are parts of equal size: each has the same number of workers, which are those of consecutive ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from yatt_core.spec.sections.accelerated import VllmRollout


@dataclass(frozen=True, slots=True)
class Span:
    """One node's view of an engine over several nodes.

    nodes: number of nodes.
    rank: this node's number in the engine; 0 has the scheduler.
    host: address of node 0, at which the workers meet.
    port: their meeting's port.
    own: this node's address in the same network.
    """

    nodes: int
    rank: int
    host: str
    port: int
    own: str


class Companions(Protocol):
    """The workers of an engine on its other nodes."""

    def join(self, model_path: str, engine: VllmRollout, longest: int, span: Span, lost: Callable[[str], None]) -> None:
        """Starts the workers of all other nodes without waiting for them, in place of earlier ones.

        longest: maximum number of tokens of a sequence, including its prompt.
        span: node 0's view.
        lost: called from another thread, with the reason, once a node's workers have ended.
        """

    def leave(self) -> None:
        """Ends the workers."""


@dataclass(frozen=True, slots=True)
class Spanned:
    """What an engine over several nodes is built with, beside its settings.

    span: node 0's view.
    """

    span: Span
    companions: Companions
