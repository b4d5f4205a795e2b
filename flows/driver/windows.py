"""Windows: when a scheduled session may drive its run, and whether it waits for another driver of the run.

Consumes the time for which a flow run was scheduled, its maximum duration, and the next starts of its schedule.
Produces times in UTC. Pure: the clock, the schedule and the ledger are read elsewhere (`flows.schedule.window_start`).

A window is measured in elapsed time, so daylight saving makes it neither longer nor shorter. It never overlaps the next
window of its schedule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import available_timezones

from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

FIELDS = {"minute": "0-59", "hour": "0-23", "day": "1-31", "month": "1-12", "weekday": "0-6 or mon-sun"}
CRON_HELP = "expected five fields (minute hour day month weekday), such as '0 22 * * *' for 22:00 every day"
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""The numbers of each field of a cron line; a weekday of 7 is Sunday, too."""
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
LONGEST = timedelta(days=366)
CLOSE = 0.75
"""Minimum similarity, from 0 to 1, for suggesting a time zone."""


@dataclass(frozen=True, slots=True)
class Window:
    """A period in which a session may drive its run.

    begins: an aware time in UTC.
    ends: an aware time in UTC; None if only the run's target or an operator ends the session.
    """

    begins: datetime
    ends: datetime | None

    @classmethod
    def between(cls, begins: datetime, longest: timedelta | None, following: Iterable[datetime]) -> Window:
        """Returns the window from `begins` until `longest` has passed or the next of the `following` starts.

        longest: maximum duration; None for no limit.
        following: later starts of the schedule.
        """
        start = begins.astimezone(UTC)
        ends = [] if longest is None else [start + longest]
        ends += [moment.astimezone(UTC) for moment in following if moment.astimezone(UTC) > start]
        return cls(start, min(ends, default=None))

    def is_over(self, now: datetime) -> bool:
        """Returns True once the window has ended."""
        return self.ends is not None and now >= self.ends

    def __str__(self) -> str:
        return f"{moment_text(self.begins)} to {'its end' if self.ends is None else moment_text(self.ends)}"


def moment_text(moment: datetime) -> str:
    """Formats a time for people and logs."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def waits(own: Window, holders: Window | None, patient_until: datetime, now: datetime) -> bool:
    """Returns True if a session that finds the lease held should wait for it, False if it should give up.

    It waits if the holder's window is over, since the holder's session is then about to end. In any case, it waits
    until `patient_until`, by which time the lease of a dead holder has expired. It does not wait past the end of its
    own window.

    holders: the holder's window; None if it has none.
    """
    if own.is_over(now):
        return False
    return now < patient_until or (holders is not None and holders.is_over(now))


def parse_duration(text: str, origin: str) -> timedelta:
    """Parses a duration such as 8h, 90m, 1h30m or 2d. Raises `ConfigurationError`.

    origin: the option, for error messages.
    """
    match = DURATION.fullmatch(text)
    parts = _numbers(match) if match else []
    if not any(parts):
        raise ConfigurationError(
            f"{origin}: {text!r} is not a duration; {_meant(text)}write whole numbers with units, such as 8h, 90m, "
            "1h30m or 2d (d, h, m, s, in this order)"
        )
    seconds = sum(part * unit for part, unit in zip(parts, UNITS.values(), strict=True))
    if seconds > LONGEST.total_seconds():
        raise ConfigurationError(f"{origin}: {text} is longer than a year; expected at most {LONGEST.days}d")
    return timedelta(seconds=seconds)


def _numbers(match: re.Match[str]) -> list[float]:
    """Returns the numbers of a duration, as floats: Python limits the number of digits of an int."""
    return [float(part or 0) for part in match.groups()]


def _meant(text: str) -> str:
    """Returns a suggestion for input such as `8 hours` or `90 min`; empty if there is none."""
    found = re.findall(r"(\d+)\s*([a-z])[a-z]*", text.strip().lower(), re.ASCII)
    meant = "".join(number + unit for number, unit in found)
    match = DURATION.fullmatch(meant)
    return f"did you mean {meant}? " if match and any(_numbers(match)) else ""


def check_cron(cron: str, origin: str) -> None:
    """Raises `ConfigurationError` for a cron line with too many or too few fields, or with a number outside its range.

    The rest is left to Prefect's reader, since it must be imported after its settings are known.

    origin: the option, for error messages.
    """
    fields = cron.split()
    if len(fields) != len(FIELDS):
        raise ConfigurationError(f"{origin}: {cron!r} has {many(len(fields), 'field')}; {CRON_HELP}")
    for text, (name, known), (least, most) in zip(fields, FIELDS.items(), RANGES, strict=True):
        bases = [item.partition("/")[0] for item in text.split(",")]
        numbers = [int(part) for base in bases for part in re.findall(r"^\d{1,9}|(?<=-)\d{1,9}$", base, re.ASCII)]
        if not all(least <= number <= most for number in numbers) or not re.fullmatch(r"[\w*,/#?-]+", text, re.ASCII):
            raise ConfigurationError(f"{origin}: {cron!r}: {name}: {text!r} is not in {known}; {CRON_HELP}")


@cache
def _timezones() -> frozenset[str]:
    return frozenset(available_timezones())


def check_timezone(name: str, origin: str) -> str:
    """Returns the name if the time zone database has it. Raises `ConfigurationError`.

    origin: the option, for error messages.
    """
    known = _timezones()
    if name in known:
        return name
    regions = sorted(zone for zone in known if zone.casefold().startswith(f"{name.casefold()}/"))
    folded = {zone.casefold(): zone for zone in known}
    cities = {zone.rpartition("/")[2].casefold(): zone for zone in known if "/" in zone}
    near = difflib.get_close_matches(name.casefold().replace(" ", "_"), [*folded, *cities], n=1, cutoff=CLOSE)
    meant = (folded | {city: zone for city, zone in cities.items() if city not in folded})[near[0]] if near else ""
    if regions:
        hint = f"it is a region; expected one of its zones, such as {regions[0]!r}"
    else:
        hint = f"did you mean {meant!r}?" if meant else "expected a name such as 'Europe/Berlin' or 'UTC'"
    raise ConfigurationError(f"{origin}: there is no time zone {name!r}; {hint}")
