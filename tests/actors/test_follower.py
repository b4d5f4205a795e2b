"""How an engine's actor starts the workers of its other nodes, and learns of their end."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest
import ray

from yatt_core.actors import follower as module
from yatt_core.actors.follower import Followers
from yatt_core.engines.rollout.served.span import Span
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.spec.sections.accelerated import VllmRollout

FIRST = Span(3, 0, "192.0.2.1", 4711, "192.0.2.1")


class Method:
    """A method of an actor that runs at once: returns its arguments in place of a reference."""

    def remote(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        return (*arguments, *named.values())


class Actor:
    serve = Method()
    leave = Method()


@pytest.mark.parametrize(
    ("outcome", "why", "kind"),
    [
        ("its process ended", "its process ended", InfrastructureError),
        (ray.exceptions.ActorUnavailableError("gone", None), "gone", InfrastructureError),
        (
            ray.exceptions.RayTaskError("serve", "", ConfigurationError("install it")),
            "install it",
            ConfigurationError,
        ),
    ],
)
def test_every_other_node_gets_its_number_and_the_end_of_any_is_told(
    outcome: object, why: str, kind: type[YattError], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SimpleQueue[Any]()
    told = SimpleQueue[tuple[str, type[YattError]]]()

    def get(served: tuple[Any, ...]) -> object:
        asked.put(served)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(module.ray, "get", get)
    engine = VllmRollout(pipeline_parallel_size=3)
    Followers([Actor(), Actor()], term=7).join(
        model_path="folder",
        engine=engine,
        longest=64,
        span=FIRST,
        invariant=True,
        lost=lambda *said: told.put(said),
    )
    served = sorted((asked.get(timeout=10) for _ in range(2)), key=lambda each: each[-2].rank)
    assert served == [(7, "folder", engine, 64, Span(3, rank, "192.0.2.1", 4711, ""), True) for rank in (1, 2)]
    ended = [told.get(timeout=10) for _ in range(2)]
    assert {each for _, each in ended} == {kind}
    said = sorted(line for line, _ in ended)
    assert [line.split(" of ")[0] for line in said] == ["node 1", "node 2"] and all(why in line for line in said)
