"""Selects the ports of the group: the requested ones, and free ones for the rest.

A group that was killed gets its previous ports again, so that clients which know its addresses still find it.
"""

from __future__ import annotations

from dataclasses import astuple

from ops.group.members import Ports
from yatt_core.supervisor.runner import free_port, is_free


def settled(asked: Ports, last: Ports | None) -> Ports:
    """Returns the ports for a start; a requested 0 becomes the last start's port if that is free, else any free one."""
    taken = {port for port in astuple(asked) if port}
    before = astuple(last) if last is not None else (0, 0, 0, 0)
    return Ports(*(port or _any(old, taken) for port, old in zip(astuple(asked), before, strict=True)))


def _any(old: int, taken: set[int]) -> int:
    port = old if old and old not in taken and is_free(old) else free_port(taken)
    taken.add(port)
    return port
