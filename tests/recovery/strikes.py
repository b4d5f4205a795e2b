"""The seeded schedule of a chaos run: which faults strike, and in which phase. Pure functions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

RECOVER = "recover"
PLAN: dict[str, dict[str, int]] = {
    "controller": {"collect": 26, "evaluate": 4},
    "engine": {"collect": 30, "sync": 12, "prepare": 4, "learn": 4, RECOVER: 6},
    "trainer": {"prepare": 9, "learn": 9, "sync": 4, "checkpoint": 5, "collect": 3, RECOVER: 6},
    "driver": {"collect": 4, "prepare": 4, "learn": 4, "sync": 4, "checkpoint": 6, "commit": 8, RECOVER: 8},
    "pause": {"collect": 3, "learn": 3, "commit": 4},
    "cold": {"collect": 3, "learn": 3, "checkpoint": 2, "commit": 2},
    "raylet": {"collect": 3, "learn": 2},
    "prefect": {"collect": 2, "prepare": 2, "learn": 1},
    "database": {"collect": 4, "learn": 2, "commit": 4},
    "supervisor": {"collect": 3, "learn": 2},
    "fork_server": {"collect": 2, "learn": 1, RECOVER: 2},
}
WARM = {kind: phases for kind, phases in PLAN.items() if kind != "prefect"} | {
    "owner": {"collect": 3, "learn": 1, RECOVER: 1}
}
"""Number of strikes by kind and phase.

pause: the driver is stopped until after its lease has expired, then continued.
cold: driver, supervisor, Ray and Prefect are killed at once.
supervisor: only the supervisor process is killed.
fork_server: the process of which Ray's workers are copies is killed.
owner: the owner of warm heads is killed.
"""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that strikes once the ledger shows the phase as dispatched."""

    kind: str
    phase: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.phase}"


def ahead(plan: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Returns a plan for a run with a lag, which collects beside the trainer, and only after a recovery in `collect`."""
    return {
        kind: {"collect_ahead" if phase == "collect" else phase: count for phase, count in phases.items()}
        for kind, phases in plan.items()
    }


def schedule(seed: int, faults: int, plan: Mapping[str, Mapping[str, int]] = PLAN) -> list[Strike]:
    """Returns `faults` strikes in a seeded order: one of each kind, and the others in the planned proportions.

    plan: `PLAN`, or `WARM` for a run that takes over warm heads; of a run with a lag, what `ahead` makes of it.
    """
    choose = random.Random(f"yatt.chaos:{seed}")
    planned = [
        Strike(kind, phase) for kind, phases in plan.items() for phase, count in phases.items() for _ in range(count)
    ]
    choose.shuffle(planned)
    firsts = list({strike.kind: strike for strike in planned}.values())
    rest = Counter(planned) - Counter(firsts)
    strikes = firsts + [strike for strike in planned if _take(rest, strike)]
    while len(strikes) < faults:
        strikes.append(choose.choice(planned))
    strikes = strikes[:faults]
    choose.shuffle(strikes)
    return strikes


def _take(left: Counter[Strike], strike: Strike) -> bool:
    """Takes a strike from those left; returns False if none of its kind and phase was left."""
    left[strike] -= 1
    return left[strike] >= 0
