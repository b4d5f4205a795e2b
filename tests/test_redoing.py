"""What a service does not answer is asked again; a question fails only beside others that are answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.availability import AWAY_SECONDS
from yatt_core.errors import AwayError
from yatt_core.redoing import RETRIES, Service, Unanswered


class Asked:
    """A service in simulated time: a question takes 10 ms, and is answered if `answers(number, attempt, now)`."""

    def __init__(self, answers: Callable[[int, int, float], bool]) -> None:
        self.answers = answers
        self.time = 0.0
        self.times = Counter[int]()

    def service(self) -> Service[str]:
        return Service("it", sleep=self.sleep, now=lambda: self.time)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def __call__(self, numbers: Collection[int]) -> dict[int, str | Unanswered]:
        found: dict[int, str | Unanswered] = {}
        for number in numbers:
            self.time += 0.01
            self.times[number] += 1
            answered = self.answers(number, self.times[number], self.time)
            found[number] = f"answer {number}" if answered else Unanswered("busy")
        return found


@given(st.lists(st.integers(0, RETRIES), min_size=1, max_size=12))
def test_questions_that_fail_a_few_times_are_answered_once(failures: list[int]) -> None:
    asked = Asked(lambda number, attempt, now: attempt > failures[number])
    found = list(asked.service().ask(range(len(failures)), asked))
    assert sorted(found) == [(number, f"answer {number}") for number in range(len(failures))]
    assert dict(asked.times) == {number: count + 1 for number, count in enumerate(failures)}


@given(st.sets(st.integers(0, 7), min_size=1, max_size=7))
def test_questions_that_never_are_answered_fail_beside_others(poison: set[int]) -> None:
    asked = Asked(lambda number, attempt, now: number not in poison)
    found = dict(asked.service().ask(range(8), asked, repeatable=True))
    assert {number for number, answer in found.items() if isinstance(answer, Unanswered)} == poison
    assert len(found) == 8


def test_what_is_answered_without_asking_says_nothing_of_the_service() -> None:
    asked = Asked(lambda number, attempt, now: number % 2 == 0)
    found = []
    with pytest.raises(AwayError, match="it is away: busy"):
        for one in asked.service().ask(range(8), asked, repeatable=True, is_told=lambda answer: False):
            found.append(one)
    assert [number for number, _ in found] == [0, 2, 4, 6] and asked.times[0] == 1
    one_told = asked.service().ask(range(8), asked, repeatable=True, is_told=lambda answer: answer == "answer 4")
    assert {number for number, answer in one_told if isinstance(answer, Unanswered)} == {1, 3, 5, 7}


def test_what_may_not_be_asked_twice_is_not_asked_to_see_whether_anything_is_answered() -> None:
    asked = Asked(lambda number, attempt, now: number != 3)
    found = []
    with pytest.raises(AwayError, match="it is away: busy"):
        found += list(asked.service().ask(range(8), asked))
    assert all(asked.times[number] == 1 for number in range(8) if number != 3)


def test_a_service_that_is_away_is_asked_again_for_what_it_did_not_answer() -> None:
    asked = Asked(lambda number, attempt, now: now > 10 * AWAY_SECONDS)
    service = asked.service()
    assert service.answers() is None, "nothing is known of it yet"
    with pytest.raises(AwayError):
        list(service.ask(range(3), asked))
    assert service.answers() is False
    asked.time = 10 * AWAY_SECONDS
    assert service.answers() is True
    assert asked.time >= AWAY_SECONDS


@given(st.floats(0.0, 3.0), st.floats(0.0, 60.0), st.integers(1, 12), st.booleans())
def test_an_outage_of_everything_fails_no_question(begin: float, length: float, count: int, repeatable: bool) -> None:
    asked = Asked(lambda number, attempt, now: not begin <= now < begin + length)
    service = asked.service()
    found = dict[int, str | Unanswered]()
    while len(found) < count:
        try:
            for number, answer in service.ask([n for n in range(count) if n not in found], asked, repeatable):
                found[number] = answer
        except AwayError:
            assert asked.time < begin + length + AWAY_SECONDS
    assert found == {number: f"answer {number}" for number in range(count)}


def test_a_question_that_was_not_put_is_left_out() -> None:
    asked = Asked(lambda number, attempt, now: True)
    assert list(asked.service().ask([0, 1], lambda numbers: asked([0]))) == [(0, "answer 0")]
