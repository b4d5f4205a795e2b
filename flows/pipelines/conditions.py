"""What the triggers of a pipeline see now: the last start of a schedule, the digest of data, an alias's move, another's end.

Consumes the triggers, the ledger and the time. Produces `TriggerObservation`, whose content changes when a trigger fires.
Content is read again only if the size or the time of a file has changed. Raises `ConfigurationError` for a schedule that cannot
be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from db.ledger import Ledger
from db.write.aliases import AliasMove
from db.write.pipeline_triggers import TriggerObservation, TriggerRow
from flows.driver.windows import moment_text, parse_duration
from flows.pipelines.checks import check_schedule
from flows.pipelines.spec import PipelineSpec
from flows.pipelines.triggers import (
    AliasTrigger,
    DataTrigger,
    PipelineTrigger,
    ScheduleTrigger,
    Trigger,
    trigger_key,
)
from flows.schedule.schedule_times import SOONEST, Schedule, cron_schedule, interval_schedule, upcoming
from yatt_core.digests import json_digest, path_digest

ANCHOR = datetime(2020, 1, 1)
"""From when intervals are counted, so that every process computes the same starts."""
NOTHING = "nothing"
STARTS = 500
"""How many starts of a schedule are computed at a time."""
SHOWN = 12


def schedules_of(spec: PipelineSpec, file: Path) -> list[Schedule]:
    """Returns the schedules among a pipeline's triggers. Raises `ConfigurationError`, with the file and the key."""
    return [
        _schedule(trigger, origin_of(file, number))
        for number, trigger in enumerate(spec.triggers)
        if isinstance(trigger, ScheduleTrigger)
    ]


def origin_of(file: Path, number: int) -> str:
    """Returns the name of a trigger in error messages."""
    return f"{file}: triggers.{number}"


def see(
    ledger: Ledger, trigger: Trigger, folder: Path, before: Sequence[TriggerRow], now: datetime, origin: str
) -> TriggerObservation | None:
    """Returns what a trigger sees; None if that cannot be told at this moment, since files are being written.

    folder: what paths in the pipeline's file are relative to.
    before: what the trigger has seen, oldest first.
    origin: the trigger's name in error messages.
    """
    key = trigger_key(trigger, folder)
    match trigger:
        case ScheduleTrigger():
            return _last_start(key=key, trigger=trigger, before=before, now=now, origin=origin)
        case DataTrigger():
            return _data(key, folder / trigger.path, before)
        case AliasTrigger():
            move = _newest_move(ledger, trigger)
            if move is None:
                return TriggerObservation(key, NOTHING, f"{trigger.alias} of {trigger.run} is given to no checkpoint")
            why = f"{move.alias} of {trigger.run} moved to iteration {move.iteration} of run {move.run}"
            return TriggerObservation(key, f"{move.run} {move.number}", why)
        case PipelineTrigger():
            ended = ledger.pipelines.last_finished(trigger.name)
            if ended is None:
                return TriggerObservation(key, NOTHING, f"pipeline {trigger.name} has not finished yet")
            return TriggerObservation(key, ended.id, f"pipeline {ended.id} finished")


def _schedule(trigger: ScheduleTrigger, origin: str) -> Schedule:
    check_schedule(trigger, origin)
    zone = f"{origin}.timezone"
    if trigger.cron is not None:
        return cron_schedule(trigger.cron, trigger.timezone, f"{origin}.cron", zone)
    interval = parse_duration(trigger.interval or "", f"{origin}.interval")
    anchor = ANCHOR.replace(tzinfo=ZoneInfo(trigger.timezone))
    return interval_schedule(interval, anchor, trigger.timezone, zone)


def _last_start(
    key: str, trigger: ScheduleTrigger, before: Sequence[TriggerRow], now: datetime, origin: str
) -> TriggerObservation:
    """Returns the last start that has come since the one that was seen last; starts that were missed count as one."""
    if not before:
        return TriggerObservation(key, now.isoformat(), "deployed")
    schedule = _schedule(trigger, origin)
    last = datetime.fromisoformat(before[-1].content)
    while True:
        starts = upcoming(schedule, last + SOONEST, STARTS)
        past = [start for start in starts if start <= now]
        last = past[-1] if past else last
        if not past or len(past) < len(starts):
            said = trigger.cron if trigger.cron is not None else f"every {trigger.interval}"
            return TriggerObservation(
                key, last.isoformat(), f"schedule {said} ({trigger.timezone}): {moment_text(last)}"
            )


def _data(key: str, path: Path, before: Sequence[TriggerRow]) -> TriggerObservation | None:
    try:
        signature = _signature(path)
        known = next((row for row in before if row.signature == signature), None)
        if known is not None:
            return TriggerObservation(key, known.content, known.why, signature)
        if signature == NOTHING:
            return TriggerObservation(key, NOTHING, f"data {path} is gone", signature)
        digest = path_digest(path)
        if _signature(path) != signature:
            return None
    except OSError:  # removed or replaced while it was read
        return None
    return TriggerObservation(key, digest, f"data {path} changed (sha256 {digest[:SHOWN]})", signature)


def _signature(path: Path) -> str:
    """Returns a digest of the sizes and times of a file, or of all files in a folder, with their names."""
    if not path.exists():
        return NOTHING
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    stats = {str(each.relative_to(path)): each.stat() for each in files}
    return json_digest({name: [stat.st_size, stat.st_mtime_ns, stat.st_ino] for name, stat in stats.items()})


def _newest_move(ledger: Ledger, trigger: AliasTrigger) -> AliasMove | None:
    named = ledger.runs.named(trigger.run)
    ids = [row.id for row in named] or [trigger.run]
    moves = [move for run in ids for move in ledger.aliases.history(run) if move.alias == trigger.alias]
    return max(moves, key=lambda move: (move.at, move.run, move.number), default=None)


def utc_now() -> datetime:
    """Returns the time."""
    return datetime.now(UTC)
