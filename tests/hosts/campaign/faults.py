"""The seeded schedule of host faults. Pure functions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of host faults.

    WORKER_POWER: a host with only workers loses power.
    DRIVER_POWER: the host of the driver and of Ray's head loses power; the run goes on from another host.
    PARTITION: a host is cut off, both ways or one way, for less time than the lease lasts.
    LONG_PARTITION: a host is cut off beyond the lease; the run goes on without it.
    PAIR_PARTITION: a worker and the driver's host are cut off from each other, but both reach the storage.
    LOSS, DELAY: packets are lost or late.
    DISK: the disk of a host is full.
    STORAGE: the host of the ledger and the object store is cut off.
    """

    WORKER_POWER = "worker_power"
    DRIVER_POWER = "driver_power"
    PARTITION = "partition"
    LONG_PARTITION = "long_partition"
    PAIR_PARTITION = "pair_partition"
    LOSS = "loss"
    DELAY = "delay"
    DISK = "disk"
    STORAGE = "storage"


PLAN = {
    Kind.WORKER_POWER: 5,
    Kind.DRIVER_POWER: 5,
    Kind.PARTITION: 8,
    Kind.LONG_PARTITION: 4,
    Kind.PAIR_PARTITION: 3,
    Kind.LOSS: 4,
    Kind.DELAY: 4,
    Kind.DISK: 4,
    Kind.STORAGE: 5,
}
"""Number of faults by kind, of 42."""
SECONDS = {
    Kind.WORKER_POWER: (2.0, 15.0),
    Kind.DRIVER_POWER: (2.0, 15.0),
    Kind.PARTITION: (1.0, 4.0),
    Kind.LONG_PARTITION: (20.0, 35.0),
    Kind.PAIR_PARTITION: (5.0, 25.0),
    Kind.LOSS: (5.0, 15.0),
    Kind.DELAY: (5.0, 15.0),
    Kind.DISK: (4.0, 12.0),
    Kind.STORAGE: (2.0, 110.0),
}
"""How long faults last: the least and the most; in a quick campaign, all of STORAGE last the least and 20 s at most."""
QUICK_STORAGE_SECONDS = 20.0
PHASES = ("collect", "collect", "prepare", "learn", "sync", "checkpoint", "commit")
LOSS = (0.02, 0.2)
DELAY = (0.02, 0.2)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that strikes once the ledger shows the phase as dispatched.

    sending, receiving: which packets a partition loses.
    on_driver: whether it strikes the driver's host, if its kind leaves that open.
    keeps_disk: whether a host that loses power has its disk afterwards.
    amount: the fraction of packets lost, or the seconds of a delay.
    """

    kind: Kind
    phase: str
    seconds: float
    sending: bool = True
    receiving: bool = True
    on_driver: bool = False
    keeps_disk: bool = True
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} in {self.phase} for {self.seconds:.0f} s"


def schedule(seed: int, count: int, kinds: Sequence[Kind] = tuple(Kind), quick: bool = False) -> list[Fault]:
    """Returns faults in a seeded order: one of each kind, the others in the planned proportions.

    kinds: those to draw from.
    """
    choose = random.Random(f"yatt.hosts:{seed}")
    planned = [kind for kind in kinds for _ in range(PLAN[kind])]
    rest = Counter(planned) - Counter(kinds)
    others = list(rest.elements())
    choose.shuffle(others)
    chosen = [*kinds, *others]
    while len(chosen) < count:
        chosen.append(choose.choice(planned))
    chosen = chosen[:count]
    choose.shuffle(chosen)
    seen: Counter[Kind] = Counter()
    faults = []
    for kind in chosen:
        faults.append(_draw(choose, kind, seen[kind], quick))
        seen[kind] += 1
    return faults


def _draw(choose: random.Random, kind: Kind, number: int, quick: bool) -> Fault:
    """Draws a fault. The first ones of a kind differ in what matters: its direction, its host, its disk."""
    least, most = SECONDS[kind]
    if kind == Kind.STORAGE and quick:
        most = QUICK_STORAGE_SECONDS
    directions = ((True, True), (True, False), (False, True))
    sending, receiving = directions[number % 3] if "partition" in kind else (True, True)
    amounts = {Kind.LOSS: LOSS, Kind.DELAY: DELAY}
    return Fault(
        kind,
        choose.choice(PHASES),
        choose.uniform(least, most),
        sending,
        receiving,
        on_driver=number % 2 == 0,
        keeps_disk=number % 2 == 1,
        amount=choose.uniform(*amounts.get(kind, (0.0, 0.0))),
    )
