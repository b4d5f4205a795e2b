"""A process in place of an engine's: `python -m ... CONNECTION PARENT` serves, `python -m ... owner` owns one that hangs."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from yatt_core.engines.rollout.vllm import engine_process, serving
from yatt_core.errors import ConfigurationError

NAME = "tests.engines.rollout.vllm.stand_in"


class StandIn:
    """What the process serves."""

    def __init__(self, refusal: str = "") -> None:
        if refusal:
            raise ConfigurationError(refusal)

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


def own() -> None:
    engine_process.MODULE = NAME
    process = engine_process.EngineProcess((), os.environ)
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    process.call("hang")


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        own()
    serving._open = lambda arguments: StandIn(*arguments)  # type: ignore[assignment]
    serving.main(int(sys.argv[1]), int(sys.argv[2]))
