"""When the windows of a deployment begin: a cron line or an interval in a time zone, and the moments that Prefect makes of it.

Consumes what a person wrote, or the schedules of a deployment as Prefect's server has them; produces Prefect's schedules and
moments in UTC. The moments come from the code with which Prefect's scheduler makes its flow runs, so that the end of a window
is just the start that follows it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from prefect.server.schemas import schedules as server_schedules
from prefect.types._datetime import DateTime
from pydantic import ValidationError

from flows.driver.windows import check_timezone
from yatt_core.errors import ConfigurationError

FIELDS = {"minute": "0-59", "hour": "0-23", "day": "1-31", "month": "1-12", "weekday": "0-6 or mon-sun"}
CRON_HELP = "five fields are needed (minute hour day month weekday), such as '0 22 * * *' for 22:00 every day"
SOONEST = timedelta(seconds=1)
Schedule = CronSchedule | IntervalSchedule


def cron_schedule(cron: str, timezone: str, origin: str, timezone_origin: str) -> CronSchedule:
    """The schedule of a cron line. The origins name the options. Raises `ConfigurationError`, naming the field that is wrong."""
    check_timezone(timezone, timezone_origin)
    fields = cron.split()
    if len(fields) != len(FIELDS):
        raise ConfigurationError(f"{origin}: {cron!r} has {len(fields)} fields; {CRON_HELP}")
    schedule = _valid_cron(cron, timezone)
    if schedule is None:
        wrong = next((name for place, name in enumerate(FIELDS) if not _is_valid_field(place, fields[place])), None)
        which = f"{wrong}: {fields[list(FIELDS).index(wrong)]!r} is not in {FIELDS[wrong]}" if wrong else "no cron line"
        raise ConfigurationError(f"{origin}: {cron!r}: {which}; {CRON_HELP}")
    try:
        upcoming(schedule, datetime.now(UTC), 1)
    except ValueError:  # croniter's word for a line that no day matches
        raise ConfigurationError(f"{origin}: {cron!r} never comes: no day of the calendar matches it") from None
    return schedule


def _is_valid_field(place: int, text: str) -> bool:
    fields = ["*"] * len(FIELDS)
    fields[place] = text
    return _valid_cron(" ".join(fields), "UTC") is not None


def _valid_cron(cron: str, timezone: str) -> CronSchedule | None:
    try:
        # Prefect takes the digits of every script.
        return CronSchedule(cron=cron, timezone=timezone) if cron.isascii() else None
    except ValidationError:
        return None


def interval_schedule(interval: timedelta, anchor: datetime, timezone: str, timezone_origin: str) -> IntervalSchedule:
    """Windows that begin so far apart, counted from the anchor; whole days keep the clock's hour in the time zone.

    Raises `ConfigurationError`.
    """
    check_timezone(timezone, timezone_origin)
    return IntervalSchedule(
        interval=interval, anchor_date=anchor.astimezone(UTC).replace(microsecond=0), timezone=timezone
    )


def upcoming(schedule: SCHEDULE_TYPES, begin: datetime, count: int) -> list[datetime]:
    """The first starts of a schedule from a moment on. Raises `ValueError` where a cron line never comes."""
    timed = getattr(server_schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    moments: Sequence[DateTime] = asyncio.run(timed.get_dates(n=count, start=begin))
    return [datetime.fromtimestamp(moment.timestamp(), UTC) for moment in moments]


def following(schedules: Iterable[SCHEDULE_TYPES], begin: datetime) -> list[datetime]:
    """The next start of each schedule behind a moment; fewer where one has no more."""
    return [moment for schedule in schedules for moment in upcoming(schedule, begin + SOONEST, 1)]
