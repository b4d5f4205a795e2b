"""Bounds the record of an iteration: of many processes of a role, the busiest are kept, and the others become one entry.

Consumes and produces a `ProfileRecord`; pure. The busiest process of each phase is always kept, because the critical path
consists of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flows.run.profile_record import Others, ProfilePart, ProfileRecord, role_of
from yatt_core.spent_time import FURTHER, PARTS

KEPT = 8
"""Processes of a role that are recorded one by one; more only if as many are the busiest of a phase."""


def merged(record: ProfileRecord) -> ProfileRecord:
    """Returns a record with at most `KEPT` processes of each role and `PARTS` parts of each process."""
    roles: dict[str, dict[str, tuple[ProfilePart, ...]]] = {}
    for name, parts in record.processes.items():
        roles.setdefault(role_of(name), {})[name] = _bounded(parts)
    processes: dict[str, tuple[ProfilePart, ...]] = {}
    others: dict[str, Others] = {}
    for role, found in roles.items():
        kept = _busiest(found)
        processes |= {name: parts for name, parts in found.items() if name in kept}
        rest = [parts for name, parts in found.items() if name not in kept]
        if rest:
            sums = _bounded([part for parts in rest for part in parts])
            others[role] = Others(len(rest), tuple(_divided(part, len(rest)) for part in sums))
    return replace(record, processes=processes, others=others)


def busiest_in(processes: Mapping[str, tuple[ProfilePart, ...]], phase: str) -> str | None:
    """Returns the process that worked longest in a phase, waits included, the first by name of equal ones; None if none did."""
    busy = {name: sum(part.seconds for part in parts if part.phase == phase) for name, parts in processes.items()}
    found = max(sorted(busy), key=lambda name: busy[name], default=None)
    return found if found is not None and busy[found] > 0.0 else None


def _busiest(processes: Mapping[str, tuple[ProfilePart, ...]]) -> set[str]:
    """Returns the names of the processes of a role to keep: the busiest of each phase, then those that worked longest."""
    if len(processes) <= KEPT:
        return set(processes)
    phases = {part.phase for parts in processes.values() for part in parts}
    found = {name for phase in phases if (name := busiest_in(processes, phase)) is not None}
    worked = {name: sum(part.seconds for part in parts) for name, parts in processes.items()}
    for name in sorted(processes, key=lambda name: (-worked[name], name)):
        if len(found) >= KEPT:
            break
        found.add(name)
    return found


def _bounded(parts: Sequence[ProfilePart]) -> tuple[ProfilePart, ...]:
    """Adds equal parts up; of too many, those that took the least become one for each phase and kind."""
    sums = _added(parts)
    if len(sums) <= PARTS:
        return sums
    ordered = sorted(sums, key=lambda part: -part.seconds)
    return _added([*ordered[:PARTS], *(replace(part, path=FURTHER) for part in ordered[PARTS:])])


def _divided(part: ProfilePart, count: int) -> ProfilePart:
    return replace(part, seconds=part.seconds / count, calls=round(part.calls / count))


def _added(parts: Iterable[ProfilePart]) -> tuple[ProfilePart, ...]:
    sums: dict[tuple[str, tuple[str, ...], str], ProfilePart] = {}
    for part in parts:
        key = (part.phase, part.path, part.kind)
        before = sums.get(key)
        sums[key] = (
            part
            if before is None
            else replace(part, seconds=before.seconds + part.seconds, calls=before.calls + part.calls)
        )
    return tuple(sums.values())
