"""An engine in place of a real one, in this environment; `python -m ... owner` owns one that hangs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yatt_core.engine_environments import EngineKind
from yatt_core.engines.rollout.served.answering import serve
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.served.process import ANSWER_SECONDS, EngineProcess
from yatt_core.engines.rollout.served.protocol import OPEN, Opening
from yatt_core.errors import ConfigurationError

NAME = "tests.engines.rollout.served.stand_in"
ROOT = Path(__file__).parents[4]
KIND = EngineKind("stand-in", "Stand-in", packages={"numpy": ""}, on_processors="numpy")


def variables(processors: bool, address: str, invariant: bool) -> dict[str, str]:
    """The engine's Python must find the tests."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


STAND_IN = Launch(KIND, NAME, variables)


class StandIn:
    """What the process serves."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings:
            raise ConfigurationError(settings["refusal"])

    def echo(self, value: Any) -> Any:
        return value

    def say(self, text: str) -> None:
        os.write(2, f"{text}\n".encode())

    def refuse(self, text: str) -> None:
        raise ConfigurationError(text)

    def fail(self) -> None:
        raise RuntimeError("an error that nobody expects")

    def hang(self) -> None:
        while True:
            time.sleep(1.0)


def start(
    refusal: str = "", seconds: float = ANSWER_SECONDS, started: Callable[[EngineProcess], None] = lambda _: None
) -> EngineProcess:
    """Starts a process."""
    opening = Opening("", {"refusal": refusal} if refusal else {}, 1)
    return EngineProcess(STAND_IN, None, opening, seconds=seconds, started=started)


def main(descriptor: int, parent: int) -> None:
    serve(descriptor, parent, {OPEN: lambda opening: StandIn(opening.settings)}, KIND.packages)


if __name__ == "__main__":
    process = start()
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    process.call("hang")
