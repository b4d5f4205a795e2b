"""The start times of a deployment's windows: a cron line or an interval in a time zone.

Consumes the user's options, or a deployment's schedules on Prefect's server; produces Prefect's schedules and times
in UTC. The times are computed by the code of Prefect's own scheduler, so a window ends exactly when the scheduler
starts the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.server.schemas import schedules as server_schedules
from prefect.types._datetime import DateTime
from pydantic import ValidationError

from flows.driver.windows import CRON_HELP, FIELDS, check_cron, check_timezone
from yatt_core.errors import ConfigurationError

SOONEST = timedelta(seconds=1)
DAY = timedelta(days=1)
Schedule = CronSchedule | IntervalSchedule | RRuleSchedule


def cron_schedule(cron: str, timezone: str, origin: str, timezone_origin: str) -> CronSchedule:
    """Returns the schedule of a cron line.

    origin, timezone_origin: the options, for error messages.

    Raises `ConfigurationError`, with the invalid field.
    """
    check_timezone(timezone, timezone_origin)
    check_cron(cron, origin)
    fields = cron.split()
    schedule = _valid_cron(cron, timezone)
    if schedule is None:
        wrong = next((name for place, name in enumerate(FIELDS) if not _is_valid_field(place, fields[place])), None)
        which = f"{wrong}: {fields[list(FIELDS).index(wrong)]!r} is not in {FIELDS[wrong]}" if wrong else "invalid cron"
        raise ConfigurationError(f"{origin}: {cron!r}: {which}; {CRON_HELP}")
    try:
        upcoming(schedule, datetime.now(UTC), 1)
    except ValueError:  # raised by croniter if no day matches
        raise ConfigurationError(f"{origin}: {cron!r} never matches: no such day exists in the calendar") from None
    return schedule


def _is_valid_field(place: int, text: str) -> bool:
    fields = ["*"] * len(FIELDS)
    fields[place] = text
    return _valid_cron(" ".join(fields), "UTC") is not None


def _valid_cron(cron: str, timezone: str) -> CronSchedule | None:
    try:
        # Prefect would accept digits of any script.
        return CronSchedule(cron=cron, timezone=timezone) if cron.isascii() else None
    except ValidationError:
        return None


def interval_schedule(
    interval: timedelta, anchor: datetime, timezone: str, timezone_origin: str
) -> IntervalSchedule | RRuleSchedule:
    """Returns the schedule of windows at a fixed interval, counted from the anchor.

    If the interval is a number of whole days, windows always begin at the same local clock time.

    timezone_origin: the option, for error messages.

    Raises `ConfigurationError`.
    """
    check_timezone(timezone, timezone_origin)
    if interval % DAY == timedelta(0):
        # Prefect 3.7's intervals of days are an hour off whenever it plans in the other half of the year than the anchor.
        first = anchor.astimezone(ZoneInfo(timezone))
        days = f"FREQ=DAILY;INTERVAL={interval // DAY}"
        return RRuleSchedule(rrule=f"DTSTART:{first:%Y%m%dT%H%M%S}\nRRULE:{days}", timezone=timezone)
    return IntervalSchedule(
        interval=interval, anchor_date=anchor.astimezone(UTC).replace(microsecond=0), timezone=timezone
    )


def upcoming(schedule: SCHEDULE_TYPES, begin: datetime, count: int) -> list[datetime]:
    """Returns the first `count` starts of a schedule from `begin` on.

    Raises `ValueError` if a cron line never matches.
    """
    timed = getattr(server_schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    moments: Sequence[DateTime] = asyncio.run(timed.get_dates(n=count, start=begin))
    return [datetime.fromtimestamp(moment.timestamp(), UTC) for moment in moments]


def following(schedules: Iterable[SCHEDULE_TYPES], begin: datetime) -> list[datetime]:
    """Returns the next start of each schedule after `begin`; a schedule without further starts is left out."""
    return [moment for schedule in schedules for moment in upcoming(schedule, begin + SOONEST, 1)]
