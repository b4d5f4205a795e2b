"""Windows: from when to when a scheduled session may drive its run, and what it does when somebody else does.

Consumes the time that a flow run was scheduled for, the longest that it may last, and the starts that follow in its schedule.
Produces moments in UTC. Pure: the clock, the schedule and the ledger are read elsewhere (`flows.schedule.scheduled`).

A window lasts for elapsed time, so a change of the clocks makes it neither longer nor shorter; it never reaches into the next
one, so two windows of a schedule never ask for the same moment, whatever the calendar does to the gaps between them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import available_timezones

from yatt_core.errors import ConfigurationError

UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
LONGEST = timedelta(days=366)
CLOSE = 0.75
"""How like a time zone's a name has to be to be taken for a slip of the pen, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Window:
    """begins, ends: aware moments in UTC; ends is None where only the run's target or a person ends it."""

    begins: datetime
    ends: datetime | None

    @classmethod
    def between(cls, begins: datetime, longest: timedelta | None, following: Iterable[datetime]) -> Window:
        """The window that begins so, lasts `longest` at most, and ends when the next one of the `following` starts begins."""
        start = begins.astimezone(UTC)
        ends = [] if longest is None else [start + longest]
        ends += [moment.astimezone(UTC) for moment in following if moment.astimezone(UTC) > start]
        return cls(start, min(ends, default=None))

    def is_over(self, now: datetime) -> bool:
        """True from the window's end on."""
        return self.ends is not None and now >= self.ends

    def __str__(self) -> str:
        return f"{moment_text(self.begins)} to {'its end' if self.ends is None else moment_text(self.ends)}"


def moment_text(moment: datetime) -> str:
    """A moment as people and logs read it."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def waits(own: Window, holders: Window | None, patient_until: datetime, now: datetime) -> bool:
    """Whether a session that finds the lease held looks again later, in place of leaving.

    It waits for a holder whose own window is over, which is about to end; and until `patient_until`, by when the lease of a
    holder that died has run out. It does not wait past its own end. holders: the window of the holder, None where it has none.
    """
    if own.is_over(now):
        return False
    return now < patient_until or (holders is not None and holders.is_over(now))


def parse_duration(text: str, origin: str) -> timedelta:
    """Such as 8h, 90m, 1h30m or 2d. origin names the option in errors. Raises `ConfigurationError`."""
    match = DURATION.fullmatch(text)
    parts = _numbers(match) if match else []
    if not any(parts):
        raise ConfigurationError(
            f"{origin}: {text!r} is no duration; {_meant(text)}write whole numbers with their units, such as 8h, 90m, "
            "1h30m or 2d (d, h, m, s, in this order)"
        )
    seconds = sum(part * unit for part, unit in zip(parts, UNITS.values(), strict=True))
    if seconds > LONGEST.total_seconds():
        raise ConfigurationError(f"{origin}: {text} is longer than a year; right would be at most {LONGEST.days}d")
    return timedelta(seconds=seconds)


def _numbers(match: re.Match[str]) -> list[float]:
    """Floating-point ones, since Python takes whole numbers of so many digits alone."""
    return [float(part or 0) for part in match.groups()]


def _meant(text: str) -> str:
    """What a person may have meant by `8 hours` or `90 min`."""
    found = re.findall(r"(\d+)\s*([a-z])[a-z]*", text.strip().lower(), re.ASCII)
    meant = "".join(number + unit for number, unit in found)
    match = DURATION.fullmatch(meant)
    return f"did you mean {meant}? " if match and any(_numbers(match)) else ""


@cache
def _timezones() -> frozenset[str]:
    return frozenset(available_timezones())


def check_timezone(name: str, origin: str) -> str:
    """A name of the time zone database, as it is written there. origin names the option. Raises `ConfigurationError`."""
    known = _timezones()
    if name in known:
        return name
    regions = sorted(zone for zone in known if zone.casefold().startswith(f"{name.casefold()}/"))
    folded = {zone.casefold(): zone for zone in known}
    cities = {zone.rpartition("/")[2].casefold(): zone for zone in known if "/" in zone}
    near = difflib.get_close_matches(name.casefold().replace(" ", "_"), [*folded, *cities], n=1, cutoff=CLOSE)
    meant = (folded | {city: zone for city, zone in cities.items() if city not in folded})[near[0]] if near else ""
    if regions:
        hint = f"it is a region; right would be a zone of it, such as {regions[0]!r}"
    else:
        hint = f"did you mean {meant!r}?" if meant else "right would be such as 'Europe/Berlin' or 'UTC'"
    raise ConfigurationError(f"{origin}: there is no time zone {name!r}; {hint}")
