"""Calls vLLM directly, in this process: the bound for `benchmarks.vllm_generation`, without a protocol or an actor.

`python -m benchmarks.vllm_direct FILE`, run with the Python of vLLM's environment. Consumes a frame with an opening, a
request and a number of rounds (`served.protocol`); prints JSON: the least seconds of a round.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from yatt_core.engines.rollout.served.protocol import value_of
from yatt_core.engines.rollout.vllm.core import VllmCore


def least_seconds(file: Path) -> float:
    """Returns the least seconds of a round. file: with the frame."""
    opening, request, rounds = value_of(file.read_bytes())
    core = VllmCore(opening)
    least = float("inf")
    for number in range(rounds):
        names = [f"{number}.{row}" for row in range(request.seeds.size)]
        started = time.perf_counter()
        core.submit(request, names, "")
        missing = len(names)
        while missing:
            missing -= len(core.step(1).ended)
        least = min(least, time.perf_counter() - started)
    return least


if __name__ == "__main__":
    found = least_seconds(Path(sys.argv[1]))
    print(json.dumps({"seconds": found}))
