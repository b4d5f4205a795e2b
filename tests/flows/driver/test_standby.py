"""A look at what is away never holds the session up: a slow one goes on, and the next one takes its answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.driver.standby import Standby
from yatt_core.errors import FencedError, InfrastructureError

STORE = "the object store s3://bucket/runs"


def standby(answers: Any, actors: Any = None) -> Standby:
    made = Standby(cast(Any, SimpleNamespace(place_is_there=lambda dependency: None)), cast(Any, None))
    context = SimpleNamespace(store=SimpleNamespace(answers=answers))
    made.enter_branch(cast(Any, context), cast(Any, actors), cast(Any, None))
    return made


def test_a_slow_look_is_left_for_a_stop_and_its_answer_is_taken_later() -> None:
    asked = list[str]()
    back = threading.Event()

    def slow(dependency: str) -> bool:
        asked.append(dependency)
        return back.wait(60)

    made = standby(slow)
    assert made.answers(STORE, lambda: True) is False
    assert made.answers(STORE, lambda: True) is False
    back.set()
    assert made.answers(STORE, lambda: False) is True
    assert asked == [STORE], "no new look while one is open"


def test_what_a_look_raises_is_no_answer_unless_the_driver_was_replaced() -> None:
    def failing(dependency: str) -> bool:
        raise InfrastructureError("no address")

    def fenced(dependency: str) -> bool:
        raise FencedError("term 2 holds the lease")

    assert standby(failing).answers(STORE, lambda: False) is None
    with pytest.raises(FencedError):
        standby(fenced).answers(STORE, lambda: False)


@pytest.mark.parametrize("found", [True, False, None])
def test_what_is_neither_a_place_nor_the_store_is_asked_of_the_actors(found: bool | None) -> None:
    actors = SimpleNamespace(answers=lambda dependency: found)
    assert standby(lambda dependency: None, actors).answers("judge 'kind' at https://j", lambda: False) is found
