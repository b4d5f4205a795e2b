"""Whether a dependency is away, from the times of answers and failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.availability import AWAY_SECONDS, LEAST_FAILURES, Attempts, Availability

EVENTS = st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), max_size=30)


@given(EVENTS, st.floats(0.0, 30.0))
def test_it_is_away_if_enough_has_failed_and_nothing_was_answered_for_long(
    events: list[tuple[float, bool]], later: float
) -> None:
    known = Availability()
    now = 0.0
    last = None
    failures = 0
    newest = -1.0
    for pause, is_answered in events:
        now += pause
        if is_answered:
            known.answered(now, now - pause / 2)
            last = now
            failures = 0
            newest = max(newest, now - pause / 2)
        else:
            known.failed()
            failures += 1
    now += later
    silent = last is None or now - last >= AWAY_SECONDS
    assert known.is_away(now) == (silent and failures >= LEAST_FAILURES)
    assert known.answers_what_was_sent_after(newest - 1e-3) == (last is not None)
    assert not known.answers_what_was_sent_after(max(newest, 0.0))


def test_two_failures_and_15_seconds_without_an_answer_are_an_outage() -> None:
    known = Availability()
    known.answered(100.0, 99.0)
    known.failed()
    assert not known.is_away(1e6), "one request may fail for what is in it"
    known.failed()
    assert not known.is_away(114.9), "a moment ago it was there"
    assert known.is_away(115.0)
    known.answered(115.0, 114.0)
    known.failed()
    assert not known.is_away(1e6), "what failed before the answer counts no more"


def test_what_is_not_asked_is_not_away() -> None:
    assert not Availability().is_away(1e6)
    known = Availability()
    known.failed()
    known.answered(1.0, 0.5)
    assert not known.is_away(1e6), "it was answered, and nothing has failed since"


@given(st.integers(0, 5), st.lists(st.booleans(), max_size=40), st.floats(0.1, 10.0))
def test_a_request_is_given_up_only_beside_others_that_are_answered(
    retries: int, answered: list[bool], pause: float
) -> None:
    """answered: whether another request is sent and answered in each pause."""
    known = Availability()
    attempts = Attempts(retries, since=0.0)
    now = 0.0
    evidence = -1.0
    for other in answered:
        known.failed()
        before = attempts.since
        step = attempts.after_failure(known, now, can_see=False)
        if step == "again":
            assert evidence > before, "a last attempt only after an answer to what was sent later"
            known.failed()
            assert attempts.after_failure(known, now, can_see=False) == "failed"
            return
        if step == "away":
            assert known.is_away(now)
            return
        assert step == "wait"
        if other:
            known.answered(now + pause, now + pause / 2)
            evidence = now + pause / 2
        now += pause


def test_something_else_is_asked_once_the_retries_are_used_up_and_not_before() -> None:
    known = Availability()
    attempts = Attempts(retries=1, since=0.0)
    known.failed()
    assert attempts.after_failure(known, 1.0, can_see=True) == "wait"
    known.failed()
    assert attempts.after_failure(known, 2.0, can_see=True) == "see"
    known.answered(3.0, 2.5)
    assert attempts.after_failure(known, 3.0, can_see=False) == "again"
    assert attempts.after_failure(known, 4.0, can_see=True) == "failed"
