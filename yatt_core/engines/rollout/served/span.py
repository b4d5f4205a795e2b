"""An engine whose workers are on several nodes: where they meet.

Nodes are parts of equal size: each has the same number of workers, which are those of consecutive ranks.
"""

from __future__ import annotations

from dataclasses import dataclass


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
