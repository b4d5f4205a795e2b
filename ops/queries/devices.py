"""What each device did during an iteration, with or without judges: which role occupied it in which phase, and how busy.

Consumes the recorded placement decision (roles by device), the attempts at the phases (times), and the metrics of the
rollout instances (seconds of work); produces `DeviceUse`. A device is occupied by a role for the whole phase; how much of
that time it worked is known for rollout instances during `collect`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from db.write.phases import DONE, AttemptRow
from flows.placement.seats import SeatSpan, seats_during
from ops.presentation.columns import Column, Columns, ShareCell
from ops.queries.run_list import find_line

TRAINER = "trainer"
SYNC = "sync"
WORKED = re.compile(r"devices/[^/]+/(rollout|judge)_seconds")
"""Metrics of how long an instance worked in an iteration; other metrics of devices have other forms."""
COLLECTING = ("collect", "collect_ahead")
ROLLING = (*COLLECTING, "evaluate")
LEARNING = ("sft", "prepare", "learn", "checkpoint")
BOTH = ("sync",)
"""Phases in which rollout instances work, trainer ranks work, and weights move from one to the other."""
DEVICES = 64
"""Maximum number of devices shown."""
Roles = Mapping[str, Sequence[Sequence[str]]]
"""The actors on each device, during `collect` and during `learn`."""


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A time in which a role occupied a device, in seconds since the iteration's first phase began.

    role: `rollout`, `judge`, `trainer` or `sync`.
    actor: the instance or rank, such as rollout-0; several that share the device are separated by commas.
    busy: fraction of the span in which the device worked; None if it is not known.
    """

    phase: str
    role: str
    actor: str
    start_s: float
    end_s: float
    busy: float | None


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """A device and its spans, in order of time.

    occupied: fraction of the iteration in which a role occupied it.
    worked: fraction of the iteration in which it is known to have worked; phases of unknown use count as a whole.
    """

    number: int
    spans: tuple[DeviceSpan, ...]
    occupied: float
    worked: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The devices of a run during an iteration.

    seconds: from the first phase's start to the last one's end.
    used: number of devices that the run uses; `devices` has the first ones, at most `DEVICES`.
    missing: why there are no devices; empty if there are.
    seats: where the actors were, from when to when; empty if that is not recorded.
    metrics: the metrics that show the use of devices over the iterations.
    """

    run: str
    iteration: int
    seconds: float
    used: int
    devices: tuple[DeviceTimeline, ...]
    missing: str
    metrics: tuple[str, ...]
    seats: tuple[SeatSpan, ...]


def device_use(ledger: Ledger, run: str, iteration: int) -> DeviceUse:
    """Returns the use of the devices during an iteration along the current line. Raises `RunNotFound`."""
    find_line(ledger, run)
    owner, branch, _ = ledger.commits.maker(run, iteration)
    metrics = _metrics(tuple(each.key for each in ledger.series.keys(run)))
    decisions = ledger.records.decisions(owner, branch, iteration)
    attempts = [row for row in ledger.phases.attempts(owner, branch, iteration) if row.state == DONE]
    seats = seats_during(ledger, owner, branch, iteration)
    roles = decisions[-1].decision.get("roles") if decisions else None
    if not roles or not attempts:
        why = "no phase is finished" if roles else "its placement does not name the roles of devices"
        return DeviceUse(
            run=run,
            iteration=iteration,
            seconds=0.0,
            used=0,
            devices=(),
            missing=f"iteration {iteration}: {why}",
            metrics=metrics,
            seats=seats,
        )
    busy = _busy(ledger, run, iteration, sum(_seconds_of(attempts, phase) for phase in COLLECTING))
    start = min(row.planned_at for row in attempts)
    seconds = max(0.0, (max(_end(row) for row in attempts) - start) / 1000)
    used = len(roles["collect"])
    devices = tuple(
        _device(number=number, roles=roles, attempts=attempts, start=start, seconds=seconds, busy=busy)
        for number in range(min(DEVICES, used))
    )
    return DeviceUse(
        run=run,
        iteration=iteration,
        seconds=seconds,
        used=used,
        devices=devices,
        missing="",
        metrics=metrics,
        seats=seats,
    )


def _device(
    number: int,
    roles: Roles,
    attempts: Sequence[AttemptRow],
    start: int,
    seconds: float,
    busy: Mapping[str, float],
) -> DeviceTimeline:
    spans = []
    for row in attempts:
        found = _occupant(row.phase, number, roles)
        if found is not None:
            role, actors = found
            known = [busy[actor] for actor in roles["collect"][number] if actor in busy]
            worked = min(1.0, sum(known)) if known and row.phase in COLLECTING else None
            span = DeviceSpan(
                phase=row.phase,
                role=role,
                actor=actors,
                start_s=(row.planned_at - start) / 1000,
                end_s=(_end(row) - start) / 1000,
                busy=worked,
            )
            spans.append(span)
    spans.sort(key=lambda span: span.start_s)
    lengths = [(span.end_s - span.start_s, 1.0 if span.busy is None else span.busy) for span in spans]
    occupied = sum(length for length, _ in lengths)
    worked = sum(length * share for length, share in lengths)
    whole = seconds or 1.0
    return DeviceTimeline(number, tuple(spans), min(1.0, occupied / whole), min(1.0, worked / whole))


def _occupant(phase: str, number: int, roles: Roles) -> tuple[str, str] | None:
    """Returns the role and the actors that occupy a device during a phase; None if none does."""
    collect, learn = (", ".join(roles[when][number]) for when in ("collect", "learn"))
    if phase in ROLLING and collect:
        return collect.partition("-")[0], collect
    if phase in LEARNING and learn:
        return TRAINER, learn
    return (SYNC, " to ".join(filter(None, (learn, collect)))) if phase in BOTH else None


def _busy(ledger: Ledger, run: str, iteration: int, seconds: float) -> dict[str, float]:
    """Returns the fraction of `collect` in which each instance worked, by the actor's name."""
    keys = [each.key for each in ledger.series.keys(run) if WORKED.fullmatch(each.key)]
    spent: dict[str, float] = {}
    for series in ledger.series.reduced(run=run, keys=keys, buckets=1, first=iteration, last=iteration):
        if series.buckets:
            instance = series.key.split("/")[1]
            spent[instance] = spent.get(instance, 0.0) + series.buckets[0].mean
    if not seconds:
        return {}
    shares = {instance: min(1.0, value / seconds) for instance, value in spent.items()}
    return {f"{role}-{instance}": share for role in ("rollout", "judge") for instance, share in shares.items()}


def _metrics(keys: Sequence[str]) -> tuple[str, ...]:
    """Returns the metrics of instances and of the driver's machine that show how busy they are, ordered by number."""
    keys = sorted(keys, key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)])
    busy = [key for key in keys if key.startswith("devices/") and key.endswith(("_seconds", "/utilization_percentage"))]
    gpus = [key for key in keys if key.startswith("system/gpu_") and key.endswith("_utilization_percentage")]
    return (*busy, *gpus, *(key for key in keys if key == "system/cpu_utilization_percentage"))


def _seconds_of(attempts: Sequence[AttemptRow], phase: str) -> float:
    return sum((_end(row) - row.planned_at) / 1000 for row in attempts if row.phase == phase)


def _end(row: AttemptRow) -> int:
    return row.planned_at if row.ended_at is None else row.ended_at


DEVICE_TIMES: Columns[DeviceTimeline] = (
    Column("device", lambda device: str(device.number), number=True, heads=True),
    Column("occupied", lambda device: ShareCell(device.occupied), number=True),
    Column("worked", lambda device: ShareCell(device.worked), number=True),
    Column("by", lambda device: ", ".join(dict.fromkeys(span.actor for span in device.spans))),
)
