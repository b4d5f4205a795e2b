"""Whether a dependency is away, from the times of answers and failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.availability import AWAY_SECONDS, LEAST_FAILURES, Availability

EVENTS = st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), max_size=30)


@given(EVENTS, st.floats(0.0, 30.0))
def test_it_is_away_if_enough_has_failed_and_nothing_was_answered_for_long(
    events: list[tuple[float, bool]], later: float
) -> None:
    known = Availability()
    now, last, failures, newest = 0.0, None, 0, -1.0
    for pause, is_answered in events:
        now += pause
        if is_answered:
            known.answered(now, now - pause / 2)
            last, failures = now, 0
            newest = max(newest, now - pause / 2)
        else:
            known.failed()
            failures += 1
    now += later
    silent = last is None or now - last >= AWAY_SECONDS
    assert known.is_away(now) == (silent and failures >= LEAST_FAILURES)
    assert known.answers_what_was_sent_after(newest - 1e-3) == (last is not None)
    assert not known.answers_what_was_sent_after(max(newest, 0.0))


def test_what_is_not_asked_is_not_away() -> None:
    assert not Availability().is_away(1e6)
    known = Availability()
    known.failed()
    known.answered(1.0, 0.5)
    assert not known.is_away(1e6), "it was answered, and nothing has failed since"
