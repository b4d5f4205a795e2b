"""Windows across clock changes: exact in length, never overlapping, at the hour given in the schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.driver.windows import Window, check_timezone, parse_duration, waits
from flows.schedule.schedule_times import cron_schedule, interval_schedule, upcoming
from tests.matrix import examples
from yatt_core.errors import ConfigurationError

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Auckland",
)
"""Zones whose clocks change: on both hemispheres, at midnight, and by half an hour."""
DAY = timedelta(days=1)


@cache
def changes(zone: str, year: int) -> list[datetime]:
    """Returns the starts in UTC of the days of a year on which the clocks of a zone change."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + number * DAY for number in range(366)]
    return [day for day, next_day in pairwise(days) if offset(day, zone) != offset(next_day, zone)]


def offset(moment: datetime, zone: str) -> timedelta | None:
    return moment.astimezone(ZoneInfo(zone)).utcoffset()


@st.composite
def around_a_change(draw: st.DrawFn) -> tuple[str, datetime]:
    zone = draw(st.sampled_from(ZONES))
    found = changes(zone, draw(st.integers(2026, 2034)))
    assert len(found) >= 2, f"the clocks of {zone} change"
    return zone, draw(st.sampled_from(found)) - 3 * DAY


minutes_of_day = st.integers(0, 24 * 60 - 1)
lengths = st.one_of(st.none(), st.integers(1, 48 * 60).map(lambda minutes: timedelta(minutes=minutes)))


@settings(max_examples=examples(25))
@given(around_a_change(), minutes_of_day, lengths)
def test_daily_windows_keep_the_hour_and_never_overlap(
    place: tuple[str, datetime], minute: int, longest: timedelta | None
) -> None:
    zone, begin = place
    schedule = cron_schedule(f"{minute % 60} {minute // 60} * * *", zone, "--cron", "--timezone")
    starts = upcoming(schedule, begin, 7)
    windows = [Window.between(start.astimezone(ZoneInfo(zone)), longest, starts) for start in starts[:-1]]
    for window, (start, following) in zip(windows, pairwise(starts), strict=True):
        assert timedelta(hours=22) <= following - start <= timedelta(hours=26), "one per day"
        assert window.ends == min(following, start + longest if longest else following)
    for start in starts:
        local = start.astimezone(ZoneInfo(zone))
        early = (local.hour * 60 + local.minute - minute) % (24 * 60)
        assert min(early, 24 * 60 - early) <= (60 if near_a_change(start, zone) else 0)


def near_a_change(moment: datetime, zone: str) -> bool:
    """Returns whether a moment is near a clock change, where a start may be up to an hour early or late."""
    hours = timedelta(hours=3)
    return offset(moment - hours, zone) != offset(moment + hours, zone)


@settings(max_examples=examples(25))
@given(around_a_change(), st.integers(1, 72 * 60))
def test_windows_of_an_interval_never_overlap(place: tuple[str, datetime], minutes: int) -> None:
    zone, begin = place
    schedule = interval_schedule(timedelta(minutes=minutes), begin, zone, "--timezone")
    starts = upcoming(schedule, begin, 6)
    windows = [Window.between(start, timedelta(minutes=2 * minutes), starts) for start in starts]
    for earlier, later in pairwise(windows):
        assert earlier.begins < later.begins and earlier.ends == later.begins
    if minutes < 24 * 60:
        assert {later - earlier for earlier, later in pairwise(starts)} == {timedelta(minutes=minutes)}


@settings(max_examples=examples(25))
@given(around_a_change(), st.integers(1, 3), st.integers(0, 800))
def test_an_interval_of_days_keeps_the_clock_time_whenever_it_is_planned(
    place: tuple[str, datetime], days: int, later: int
) -> None:
    zone, anchor = place
    schedule = interval_schedule(days * DAY, anchor, zone, "--timezone")
    planned = upcoming(schedule, anchor + later * DAY, 5)
    clock = anchor.astimezone(ZoneInfo(zone)).strftime("%H:%M:%S")
    for start, following in pairwise(planned):
        local = start.astimezone(ZoneInfo(zone))
        after = following.astimezone(ZoneInfo(zone))
        assert (after.date() - local.date()).days == days
        assert local.strftime("%H:%M:%S") == clock or near_a_change(start, zone)
    whole = upcoming(schedule, anchor, later // days + 8)
    assert set(planned) <= set(whole), "the same starts from whenever they are looked for"


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2027-03-27", 7.0), ("2027-06-01", 8.0), ("2027-10-30", 9.0)],
)
def test_a_night_until_the_next_start_is_as_long_as_that_night(day: str, hours: float) -> None:
    """22:00 to 06:00 in Berlin: seven hours if clocks go forward, nine if they go back; `--for 8h` is always eight."""
    begins = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"), hour=22)
    ends = timedelta(hours=8)
    morning = (begins + timedelta(hours=8)).replace(hour=6)
    assert Window.between(begins, None, [morning]).ends == begins.astimezone(UTC) + timedelta(hours=hours)
    assert Window.between(begins, ends, []).ends == begins.astimezone(UTC) + timedelta(hours=8)


def test_a_window_of_a_day_does_not_reach_into_the_next_one_on_a_day_of_23_hours() -> None:
    schedule = cron_schedule("0 0 * * *", "Europe/Berlin", "--cron", "--timezone")
    starts = upcoming(schedule, datetime(2027, 3, 27, 12, tzinfo=UTC), 3)
    window = Window.between(starts[0], DAY, starts)
    assert window.ends == starts[1] == starts[0] + timedelta(hours=23)
    assert window.is_over(starts[1]) and not window.is_over(starts[1] - timedelta(seconds=1))


def at(hour: float) -> datetime:
    return datetime(2027, 1, 1, tzinfo=UTC) + timedelta(hours=hour)


def test_a_window_waits_only_for_a_window_that_is_over() -> None:
    own = Window(at(8), at(16))
    assert waits(own, Window(at(0), at(8)), at(8), at(8.1)), "the previous window takes its last checkpoint"
    assert not waits(own, Window(at(0), at(9)), at(8), at(8.1)), "a longer one is left alone"
    assert not waits(own, Window(at(7), None), at(8), at(8.1)), "one without an end is left alone"
    assert not waits(own, None, at(8), at(8.1)), "so is `yatt resume`"
    assert waits(own, None, at(8.2), at(8.1)), "its lease may still expire"
    assert not waits(own, Window(at(0), at(8)), at(20), at(16)), "a window does not wait past its own end"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("8h", timedelta(hours=8)),
        ("90m", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", 2 * DAY),
        ("45s", timedelta(seconds=45)),
    ],
)
def test_durations(text: str, length: timedelta) -> None:
    assert parse_duration(text, "--for") == length


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8 hours", "did you mean 8h?"),
        ("90 min", "did you mean 90m?"),
        ("1h 30m", "did you mean 1h30m?"),
        ("8", "such as 8h"),
        ("0h", "such as 8h"),
        ("-8h", "such as 8h"),
        ("1.5h", "such as 8h"),
        ("30m1h", "in this order"),
        ("", "such as 8h"),
        ("999d", "at most 366d"),
        (f"{'9' * 10_000}s", "at most 366d"),
        (f"{'9' * 10_000} seconds", "did you mean 999"),
        ("١h", "such as 8h"),
    ],
)
def test_invalid_durations(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--for: ") as caught:
        parse_duration(text, "--for")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Europe/Berln", "'Europe/Berlin'"),
        ("europe/berlin", "'Europe/Berlin'"),
        ("Berlin", "'Europe/Berlin'"),
        ("America/New York", "'America/New_York'"),
        ("Nowhere/Land", "such as 'Europe/Berlin' or 'UTC'"),
        ("Euro", "such as 'Europe/Berlin' or 'UTC'"),
        ("Europe", "region; expected one of its zones, such as 'Europe/"),
        ("america", "region; expected one of its zones, such as 'America/"),
    ],
)
def test_unknown_time_zones(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_timezone(name, "--timezone")
    assert str(caught.value).startswith(f"--timezone: there is no time zone {name!r}") and meant in str(caught.value)


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("0 25 * * *", "hour: '25' is not in 0-23"),
        ("0 ١ * * *", "hour: '١' is not in 0-23"),
        ("61 * * * *", "minute: '61' is not in 0-59"),
        ("0 22 * * monday", "weekday: 'monday' is not in 0-6 or mon-sun"),
        ("0 22 * *", "has 4 fields"),
        ("0 22 * * * *", "has 6 fields"),
        ("@daily", "'0 22 * * *' for 22:00 every day"),
        ("0 0 30 2 *", "'0 0 30 2 *' never "),
        ("h 22 * * *", "minute: 'h'"),
    ],
)
def test_invalid_cron_lines(cron: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        cron_schedule(cron, "UTC", "--cron", "--timezone")
    assert str(caught.value).startswith("--cron: ") and says in str(caught.value)
