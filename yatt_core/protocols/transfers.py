"""Messages about weights on their way from the trainer's ranks to engines, and about what each of them holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from yatt_core.wire.parts import Rectangle


@dataclass(frozen=True, slots=True)
class SyncMember:
    """An actor that takes part.

    actor_id: Ray's id of this incarnation.
    """

    name: str
    actor_id: str


@dataclass(frozen=True, slots=True)
class TransferTask:
    """A transfer of a version's weights.

    name: unique among all transfers of a run.
    address: `tcp://host:port` where the members meet, served by the first of them. Members keep their connections as
        long as the address stays the same.
    ranks, engines: all members; a rank sends, an engine receives.
    base: name of the earlier transfer whose weights all these engines hold, if only what has changed since is sent;
        empty to send everything.
    """

    term: int
    version: int
    name: str
    address: str
    ranks: tuple[SyncMember, ...]
    engines: tuple[SyncMember, ...]
    base: str = ""

    @property
    def members(self) -> tuple[SyncMember, ...]:
        """The ranks, then the engines."""
        return self.ranks + self.engines


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Digests of the weights that an actor holds.

    version: version of its weights.
    digests: by rectangle; None if the actor cannot tell.
    """

    version: int
    digests: Mapping[Rectangle, str] | None
