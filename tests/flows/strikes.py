"""Strikes at a run beside its driver: instances that are paused at random, an actor that is killed at a moment.

Each is a thread that ends with its context, and finds the run's actors by what they have logged.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.recovery.parts import kill, living_actors

PAUSE_SECONDS = (0.05, 0.4)


@contextmanager
def beside(work: threading.Thread, over: threading.Event) -> Iterator[None]:
    """Runs a thread beside a driver."""
    work.start()
    try:
        yield
    finally:
        over.set()
        work.join()


@contextmanager
def slowed_at_random(folder: Path, seed: int) -> Iterator[None]:
    """Stops one rollout instance after another for a moment."""
    over = threading.Event()
    drawn = random.Random(seed)

    def slow() -> None:
        while not over.wait(drawn.uniform(*PAUSE_SECONDS)):
            engines = {name: pid for name, pid in actors_in(folder).items() if name.startswith("rollout-")}
            if engines:
                pid = engines[drawn.choice(sorted(engines))]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(drawn.uniform(*PAUSE_SECONDS))
                    os.kill(pid, signal.SIGCONT)

    with beside(threading.Thread(target=slow), over):
        yield


@contextmanager
def killed_once(folder: Path, actor: str, iteration: str) -> Iterator[None]:
    """Kills an actor once the first shard of an iteration is sealed."""
    over = threading.Event()
    killed = list[int]()

    def strike() -> None:
        while not killed and not over.wait(0.01):
            if any(folder.glob(f"experience/b000/{iteration}/*/samples.parquet")):
                killed.append(living_actors(folder)[actor])
                kill(killed[0])

    with beside(threading.Thread(target=strike), over):
        yield
    assert killed, f"{actor} was not killed"


def actors_in(folder: Path) -> dict[str, int]:
    return living_actors(folder) if (folder / "logs").exists() else {}
