"""Readings of what actors use: nobody is waited for long, and no time that an actor has spent is lost."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from yatt_core.actors.use_meter import ProcessUse
from yatt_core.protocols.receipts import Holdings
from yatt_core.run_actors import process_use as module
from yatt_core.run_actors.process_use import UseReadings
from yatt_core.spent_time import ENGINE, SpentTime


class Question:
    """A question to an actor, which answers it once it is not busy."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.answer: ProcessUse | None = None


class Actor:
    """An actor that works for a second between two questions, one after another."""

    def __init__(self) -> None:
        self.busy = self.lost = False
        self.worked = 0.0
        self.questions: list[Question] = []
        self.process_use = SimpleNamespace(remote=self.ask)

    def ask(self, term: int) -> Question:
        question = Question(self)
        self.questions.append(question)
        self.serve()
        return question

    def serve(self) -> None:
        if self.busy:
            return
        for question in self.questions:
            taken = (SpentTime(("learn",), ENGINE, self.worked, 1),) if self.worked else ()
            question.answer = ProcessUse(self.worked, Holdings(), taken)
            self.worked = 0.0
        self.questions.clear()


def wait(asked: Sequence[Question], num_returns: int, timeout: float) -> tuple[list[Question], list[Question]]:
    done = [each for each in asked if each.answer is not None or each.actor.lost]
    return done, [each for each in asked if each not in done]


def get(question: Question) -> ProcessUse:
    if question.answer is None:
        raise ray.exceptions.RayActorError
    return question.answer


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ray", SimpleNamespace(wait=wait, get=get, exceptions=ray.exceptions))


def seconds(found: dict[str, ProcessUse], name: str) -> list[float]:
    return [one.seconds for one in found[name].spent]


def test_an_answer_that_comes_too_late_is_part_of_the_next_reading() -> None:
    readings = UseReadings()
    quick = Actor()
    slow = Actor()
    actors: dict[str, Any] = {"trainer-0": quick, "rollout-0": slow}
    quick.worked = slow.worked = 1.0
    slow.busy = True
    assert set(readings.read(actors, 1)) == {"trainer-0"}
    slow.busy = False
    slow.serve()
    quick.worked = slow.worked = 2.0
    found = readings.read(actors, 1)
    assert seconds(found, "rollout-0") == [1.0, 2.0], "late ones first"
    assert found["rollout-0"].utilization == 2.0, "of the newest answer"
    assert seconds(found, "trainer-0") == [2.0]
    assert seconds(readings.read(actors, 1), "rollout-0") == []


def test_an_actor_that_stays_busy_is_asked_once() -> None:
    readings = UseReadings()
    slow: Any = Actor()
    slow.busy = True
    for _ in range(3):
        assert readings.read({"rollout-0": slow}, 1) == {}
    assert len(slow.questions) == 1
    slow.busy = False
    slow.worked = 4.0
    slow.serve()
    assert seconds(readings.read({"rollout-0": slow}, 1), "rollout-0") == [4.0]


def test_what_was_spent_before_a_new_beginning_is_not_heard() -> None:
    readings = UseReadings()
    slow: Any = Actor()
    slow.busy = True
    slow.worked = 1.0
    readings.read({"rollout-0": slow}, 1)
    readings.forget({"rollout-0": slow}, 1)
    slow.busy = False
    slow.serve()
    slow.worked = 2.0
    assert seconds(readings.read({"rollout-0": slow}, 1), "rollout-0") == [2.0]


def test_a_lost_actor_is_left_out_and_its_successor_is_asked() -> None:
    readings = UseReadings()
    lost: Any = Actor()
    lost.busy = True
    assert readings.read({"trainer-1": lost}, 1) == {}
    lost.lost = True
    assert readings.read({"trainer-1": lost}, 1) == {}
    successor: Any = Actor()
    successor.worked = 1.0
    assert seconds(readings.read({"trainer-1": successor}, 1), "trainer-1") == [1.0]


def test_a_reading_that_was_begun_is_not_begun_again() -> None:
    readings = UseReadings()
    slow: Any = Actor()
    slow.busy = True
    slow.worked = 1.0
    readings.ask({"rollout-0": slow}, 1)
    assert len(slow.questions) == 1
    slow.busy = False
    slow.serve()
    slow.worked = 2.0
    assert seconds(readings.read({"rollout-0": slow}, 1), "rollout-0") == [1.0], "until it was asked"
    assert seconds(readings.read({"rollout-0": slow}, 1), "rollout-0") == [2.0]


def test_a_reading_that_nobody_has_taken_is_part_of_the_next() -> None:
    readings = UseReadings()
    actor: Any = Actor()
    actor.worked = 1.0
    readings.ask({"trainer-0": actor}, 1)
    actor.worked = 2.0
    readings.ask({"trainer-0": actor}, 1)
    assert seconds(readings.read({"trainer-0": actor}, 1), "trainer-0") == [1.0, 2.0]
    readings.ask({"trainer-0": actor}, 1)
    readings.drop()
    actor.worked = 3.0
    assert seconds(readings.read({"trainer-0": actor}, 1), "trainer-0") == [3.0]
