"""An actor's end of direct transfers of weights: the meeting it may serve, its connections, and when it gives up.

Consumes tasks of the driver; provides connections that last from one transfer to the next, until one fails. Imports
torch only where it is used, so that the driver and virtual actors never load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ray.util import get_node_ip_address

from yatt_core.actors.presence import Presence
from yatt_core.cluster.gcs import ended_actors
from yatt_core.errors import LostActorError
from yatt_core.protocols.transfers import TransferTask

if TYPE_CHECKING:
    from yatt_core.engines.sync.group import SyncGroup


class TransferEnd:
    """One actor's end."""

    def __init__(self, name: str, presence: Presence) -> None:
        self._name = name
        self._presence = presence
        self._served: tuple[str, Any] | None = None
        self._group: SyncGroup | None = None

    def host(self) -> str:
        """Returns the address of this actor's node in the cluster."""
        return str(get_node_ip_address())

    def serve(self, host: str) -> str:
        """Starts a meeting at an address of this node, in place of an earlier one; returns where to meet."""
        from yatt_core.engines.sync.group import serve_meeting

        self._close()
        self._served = serve_meeting(host)
        return self._served[0]

    @contextmanager
    def group(self, task: TransferTask) -> Iterator[SyncGroup]:
        """Provides the connections for a transfer. If it fails, they are closed, so that the other members notice."""
        from yatt_core.engines.device import own_device
        from yatt_core.engines.sync.group import SyncGroup

        try:
            if self._group is None or self._group.address != task.address:
                self._group = None
                address, store = self._served or ("", None)
                self._group = SyncGroup(
                    task=task,
                    own=self._name,
                    store=store if address == task.address else None,
                    device=own_device(),
                    check=self._check,
                )
            yield self._group
        except BaseException:
            self._close()
            raise

    def _check(self, task: TransferTask) -> None:
        """Raises `FencedError` if the driver has been replaced, and `LostActorError` if a member has ended."""
        self._presence.fence.check(task.term)
        names = {member.actor_id: member.name for member in task.members}
        if gone := ended_actors(list(names)):
            ended = ", ".join(names[each] for each in gone)
            raise LostActorError(f"{self._name} waits in vain for {ended}: its process has ended")

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._served = None
