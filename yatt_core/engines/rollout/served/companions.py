"""What the node of an engine's scheduler asks of the engine's other nodes; the actors' side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from yatt_core.engines.rollout.served.span import Span
from yatt_core.errors import YattError
from yatt_core.spec.sections.accelerated import VllmRollout

Lost = Callable[[str, type[YattError]], None]
"""Told, from another thread, of the end of a node's workers: why, and the kind of error."""


class Companions(Protocol):
    """The workers of an engine on its other nodes."""

    def join(
        self,
        model_path: str,
        engine: VllmRollout,
        longest: int,
        span: Span,
        invariant: bool,
        lost: Lost,
    ) -> None:
        """Starts the workers of all other nodes without waiting for them, in place of earlier ones.

        longest: maximum number of tokens of a sequence, including its prompt.
        span: node 0's view.
        invariant: as `Opening.invariant`.
        lost: called once a node's workers have ended.
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
