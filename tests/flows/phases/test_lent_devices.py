"""The trainer's devices generate while it waits, and only then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flows.phases import ahead, tasks


class Actors:
    """Notes which instances are kept free."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def keep_instances(self, instances: Any) -> None:
        self._said.append(tuple(instances))


@pytest.mark.parametrize("lends", [True, False])
def test_they_are_kept_while_it_learns_and_lent_once_it_waits(monkeypatch: pytest.MonkeyPatch, lends: bool) -> None:
    said: list[Any] = []
    placement: Any = SimpleNamespace(lends=lends)
    spec = SimpleNamespace(lent_instances=(0, 1))
    session: Any = SimpleNamespace(
        actors=Actors(said), context=SimpleNamespace(spec=spec), ahead={2: SimpleNamespace(after=lambda state: state)}
    )
    state: Any = SimpleNamespace(iteration=1, ahead=lambda spec: 3)
    monkeypatch.setattr(ahead, "_turn", lambda session, number: session.ahead.get(number))
    monkeypatch.setattr(ahead, "place", lambda *_: said.append("place") or placement)
    monkeypatch.setattr(ahead, "begin_ahead", lambda *_: said.append("begin"))
    monkeypatch.setattr(ahead, "collect_ahead", lambda *_: said.append("wait"))
    monkeypatch.setattr(ahead, "Turn", lambda *_: None)
    monkeypatch.setattr(ahead, "InFlight", lambda *_: None)
    monkeypatch.setattr(ahead, "sorted", lambda _: [], raising=False)
    begun = ahead.start_ahead(session, state)
    said.append("learn")
    ahead.finish_ahead(session, state, begun)
    assert said == ["place", (0, 1), "begin", "learn", *([()] if lends else []), "wait"]


def test_without_lent_instances_nobody_is_asked() -> None:
    session: Any = SimpleNamespace(context=SimpleNamespace(spec=SimpleNamespace(lent_instances=())))
    tasks.keep_trainer_devices(session)
    tasks.lend_trainer_devices(session, SimpleNamespace(lends=True))  # type: ignore[arg-type]
