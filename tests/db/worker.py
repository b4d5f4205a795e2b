"""A driver in a separate process, for tests that kill it or let two of them contend.

worker.py forever PATH              commit for ever; print each iteration once it is acknowledged
worker.py contend PATH SEED         print `ready`, wait for a line, then take the lease repeatedly, with pauses longer
                                    than the lease, until it has committed enough and was replaced, or its input ends
worker.py open PATH                 open (and migrate) the ledger
"""

from __future__ import annotations

import random
import select
import sys
import time
from collections.abc import Callable

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld
from db.core.holder import this_process
from db.ledger import Ledger
from tests.db.tools import commit_of

SHORT = 0.05
ENOUGH = 20
SECONDS = 2.0
SECONDS_AT_MOST = 50.0


def forever(path: str) -> None:
    ledger = Ledger.open(path)
    fence = ledger.leases.acquire("toy-1", this_process("child"), ttl_seconds=600)
    latest = ledger.commits.latest("toy-1")
    iteration = 0 if latest is None else latest.iteration + 1
    while True:
        attempt = ledger.phases.plan(fence, 0, iteration, "learn")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.finish(fence, attempt, {}, 0.1)
        ledger.commits.commit(fence, commit_of(iteration))
        sys.stdout.write(f"{iteration}\n")
        sys.stdout.flush()
        iteration += 1


def contend(path: str, seed: str) -> None:
    """Contends for the lease; no holder is ever known to be gone, so only expiry and the term decide."""
    chance = random.Random(int(seed))
    fenced = 0
    committed: list[int] = []

    def is_over() -> bool:
        seconds = time.monotonic() - began
        seen_enough = len(committed) > ENOUGH and fenced > 0
        other_has_seen_enough = bool(select.select([sys.stdin], [], [], 0.0)[0])
        return seconds > SECONDS_AT_MOST or other_has_seen_enough or (seen_enough and seconds > SECONDS)

    with Ledger.open(path) as ledger:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        began = time.monotonic()
        while not is_over():
            try:
                fence = ledger.leases.acquire("toy-1", this_process(seed), SHORT, holder_is_gone=lambda _: False)
            except LeaseHeld:
                time.sleep(0.005)
                continue
            try:
                stint(ledger, fence, chance, committed, is_over)
            except Fenced:
                fenced += 1
    sys.stdout.write(f"{len(committed)} {fenced}\n")


def stint(
    ledger: Ledger, fence: Fence, chance: random.Random, committed: list[int], is_over: Callable[[], bool]
) -> None:
    while not is_over() and chance.random() > 0.05:
        latest = ledger.commits.latest("toy-1")
        if chance.random() < 0.15:
            time.sleep(SHORT * 2)
        iteration = 0 if latest is None else latest.iteration + 1
        ledger.commits.commit(fence, commit_of(iteration))
        committed.append(iteration)


if __name__ == "__main__":
    {"forever": forever, "contend": contend, "open": lambda path: Ledger.open(path).close()}[sys.argv[1]](*sys.argv[2:])
