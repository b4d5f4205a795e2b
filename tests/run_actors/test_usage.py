"""How often rollout engines are asked for the work that they have done."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from yatt_core.placement.seen import Usage
from yatt_core.run_actors import run_actors as module
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.run_actors import RunActors

ROW = Usage(0, "r", 5, 40, decode_s=0.5)
ASKED = SimpleNamespace(remote=lambda *_: None)


class Engine:
    """One rollout engine, which counts the questions."""

    def __init__(self) -> None:
        self.asked = 0
        self.usage = SimpleNamespace(remote=self._usage)

    def _usage(self, term: int) -> tuple[Usage, ...]:
        self.asked += 1
        return (ROW,)


def actors_with(engine: Engine) -> RunActors:
    """Returns the actors of a run whose driver has just begun, but for their processes."""
    actors = RunActors.__new__(RunActors)
    held: Any = SimpleNamespace(
        names=["rollout-0", "dispatcher-0", "controller-0"],
        of=lambda role: [engine] if role == ROLLOUT else [SimpleNamespace(cut=ASKED, place=ASKED)],
    )
    calls: Any = SimpleNamespace(get=lambda references, what, names: references)
    actors._registry = held
    actors._calls = calls
    actors._term = 1
    actors._worked = True  # an earlier driver may have begun something
    actors._cut = False
    actors._branch = 0
    actors._blocked = held
    actors.resident = True
    return actors


def collect(actors: RunActors) -> None:
    actors.begin_collecting([])


def evaluate(actors: RunActors) -> None:
    actors.evaluate("run-1", 1, 1)


@pytest.mark.parametrize("begin", [collect, evaluate])
def test_usage_is_discarded_only_if_something_has_been_begun_since_it_was_read(
    begin: Callable[[RunActors], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WaveCollection", lambda *_: None)
    monkeypatch.setattr(module, "evaluate", lambda *_: {0: "answered"})
    engine = Engine()
    actors = actors_with(engine)
    actors.discard_usage()
    assert engine.asked == 1, "an earlier driver may have left some"
    actors.discard_usage()
    assert engine.asked == 1
    begin(actors)
    actors.discard_usage()
    assert engine.asked == 2, "what has been begun may be done by now"
    begin(actors)
    assert actors.usage() == (ROW,) and engine.asked == 3
    actors.discard_usage()
    assert engine.asked == 3


def test_what_was_cut_is_discarded_although_the_rest_was_read() -> None:
    engine = Engine()
    actors = actors_with(engine)
    actors.cut()
    assert actors.usage() == (ROW,)
    actors.discard_usage()
    assert engine.asked == 2, "engines finish what was cut"
    actors.discard_usage()
    assert engine.asked == 2
