"""Which nodes of a run shared the disk of its folder, and when: read from the links of the audit chain that record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from db.ledger import Ledger
from flows.placement.seats import RECORDS

DISKS = "disks"
"""The kind of these links."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk with the run's folder.

    nodes: the names of the nodes that share it.
    """

    nodes: tuple[str, ...]


def last_disks(ledger: Ledger, run: str) -> Mapping[str, str]:
    """Returns the name of the node that each node shares its disk with; empty if all nodes share one."""
    links = ledger.browse.events(run, 1, kinds=(DISKS,))
    return dict(links[0].body["nodes"]) if links else {}


def disks_during(ledger: Ledger, run: str, branch: int, iteration: int) -> tuple[Disk, ...]:
    """Returns the disks while an iteration was made last; empty if all nodes shared one."""
    attempts = ledger.phases.attempts(run, branch, iteration)
    last = max((each.ended_at or each.planned_at for each in attempts), default=0)
    links = [link for link in ledger.browse.events(run, RECORDS, kinds=(DISKS,)) if link.at <= last]
    return disks_of(links[0].body["nodes"]) if links else ()


def disks_of(nodes: Mapping[str, str]) -> tuple[Disk, ...]:
    """Returns the disks, in the order of their first nodes.

    nodes: the name of the node that each node shares its disk with.
    """
    found: dict[str, list[str]] = {}
    for node, disk in sorted(nodes.items()):
        found.setdefault(disk, []).append(node)
    return tuple(Disk(tuple(members)) for members in sorted(found.values()))
