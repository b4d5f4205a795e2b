"""The seeded schedule of the outages: what is away, how, for how long, and beside what. Pure functions.

Consumes a seed and a number of minutes. Produces slots, one after another: a slot's outages begin at their own times, several
at once, and the next slot begins once the run has gone on after the last. The number of minutes decides how many short ones there
are; the long ones and those of ten minutes are always there in a whole campaign.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is away."""

    JUDGE = "judge"
    TOOL = "tool"
    STORE = "store"
    LEDGER = "ledger"
    MLFLOW = "mlflow"
    PREFECT = "prefect"
    NODE = "node"


class Mode(StrEnum):
    """How it is away.

    REFUSE: connections are refused and those that are open are cut; a node loses its power.
    HANG: connections and requests are accepted and never answered.
    ERROR: every request is answered with 503.
    THIRD: a third of the requests fail, of the ledger a third of the connections. Some questions to a judge or a tool's
        service always fail.
    """

    REFUSE = "refuse"
    HANG = "hang"
    ERROR = "error"
    THIRD = "third"


SHORT = "5 to 60 s"
LONG = "2 to 4 min"
TEN = "10 min"
"""The classes of length."""
WAITED_FOR = frozenset({Kind.JUDGE, Kind.TOOL, Kind.STORE, Kind.LEDGER, Kind.NODE})
"""What a run waits for. It goes on without the others."""
MASKING = frozenset({Kind.JUDGE, Kind.TOOL})
"""What may leave a sample without a score, if only some of its requests fail."""
MODES = {
    Kind.JUDGE: (Mode.REFUSE, Mode.ERROR, Mode.HANG),
    Kind.TOOL: (Mode.REFUSE, Mode.ERROR, Mode.HANG),
    Kind.STORE: (Mode.REFUSE, Mode.ERROR, Mode.THIRD),
    Kind.LEDGER: (Mode.REFUSE, Mode.HANG, Mode.THIRD),
    Kind.MLFLOW: (Mode.REFUSE, Mode.ERROR, Mode.HANG, Mode.THIRD),
    Kind.PREFECT: (Mode.REFUSE, Mode.ERROR, Mode.HANG, Mode.THIRD),
    Kind.NODE: (Mode.REFUSE,),
}
"""How each is away in a run in which nothing must be masked."""
SETTLE_SECONDS = 25.0
"""Allowed for a run to go on after a slot, for the plan; a slot that takes less is followed at once."""
FIXED_MINUTES = 13.0
"""Allowed for the start of the bed, the starts and ends of three runs, and the undisturbed run."""
LEAST_SHORT = 30


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage.

    start: seconds after the beginning of its slot.
    name: for those that the report names.
    """

    kind: Kind
    mode: Mode
    seconds: float
    start: float = 0.0
    name: str = ""

    @property
    def end(self) -> float:
        """When it ends, in seconds after the beginning of its slot."""
        return self.start + self.seconds

    @property
    def length(self) -> str:
        """Its class of length."""
        return SHORT if self.seconds <= 60.0 else LONG if self.seconds <= 240.0 else TEN

    @property
    def is_partial(self) -> bool:
        """Whether some requests are answered."""
        return self.mode == Mode.THIRD

    def __str__(self) -> str:
        return f"{self.name or self.kind} ({self.mode}, {self.seconds:.0f} s)"


Slot = tuple[Outage, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The outages of a campaign.

    unmasked: slots of the run whose results are compared with those of an undisturbed one.
    masking: slots of the run in which samples may be left without a score.
    """

    unmasked: tuple[Slot, ...]
    masking: tuple[Slot, ...]

    @property
    def seconds(self) -> float:
        """The time that the outages take as planned."""
        return sum(slot_seconds(slot) + SETTLE_SECONDS for slot in (*self.unmasked, *self.masking))

    @property
    def outages(self) -> tuple[Outage, ...]:
        """All outages in order."""
        return tuple(outage for slot in (*self.unmasked, *self.masking) for outage in slot)

    def counts(self) -> dict[str, int]:
        """Returns the number of outages by class of length."""
        found = Counter(outage.length for outage in self.outages)
        return {length: found[length] for length in (SHORT, LONG, TEN)}


def slot_seconds(slot: Slot) -> float:
    """Returns how long a slot's outages take."""
    return max(outage.end for outage in slot)


def plan(seed: int, minutes: float) -> Plan:
    """Returns the whole campaign: as many short outages as fit, at least `LEAST_SHORT`. Raises `ValueError` if that is too long.

    minutes: for everything, the undisturbed run included.
    """
    choose = random.Random(f"yatt.outside:{seed}")
    long = _long_slots(choose)
    masking = _masking_slots(choose)
    given = 60.0 * (minutes - FIXED_MINUTES)
    short: list[Slot] = []
    kinds = _endless(choose, tuple(Kind))
    while True:
        more = _short_slot(choose, kinds)
        tried = Plan((*long, *short, more), masking)
        enough = Plan((*long, *short), masking).counts()[SHORT] >= LEAST_SHORT
        if tried.seconds > given:
            if not enough:
                raise ValueError(
                    f"the outages take some {tried.seconds / 60 + FIXED_MINUTES:.0f} minutes; expected more --minutes"
                )
            break
        short.append(more)
        if enough and tried.counts()[SHORT] >= LEAST_SHORT + 6:
            break
    slots = [*long, *short]
    choose.shuffle(slots)
    return Plan(tuple(slots), masking)


def short_plan(seed: int) -> Plan:
    """Returns a campaign of some minutes: each thing away once, two at once, and a part of the judge's requests."""
    choose = random.Random(f"yatt.outside.short:{seed}")
    whole = (
        (_short(choose, Kind.JUDGE, 25.0), _short(choose, Kind.MLFLOW, 20.0)),
        (_short(choose, Kind.STORE, 15.0), _short(choose, Kind.PREFECT, 15.0)),
        (_short(choose, Kind.LEDGER, 15.0),),
        (_short(choose, Kind.TOOL, 20.0),),
        (_short(choose, Kind.NODE, 20.0),),
    )
    return Plan(whole, ((Outage(Kind.JUDGE, Mode.THIRD, 30.0), Outage(Kind.TOOL, Mode.THIRD, 30.0)),))


def only(plan: Plan, kinds: Iterable[Kind]) -> Plan:
    """Returns a plan without the outages of other kinds."""
    wanted = frozenset(kinds)

    def kept(slots: Sequence[Slot]) -> tuple[Slot, ...]:
        found = [tuple(outage for outage in slot if outage.kind in wanted) for slot in slots]
        return tuple(slot for slot in found if slot)

    return Plan(kept(plan.unmasked), kept(plan.masking))


def _long_slots(choose: random.Random) -> list[Slot]:
    """Returns the two outages of ten minutes and eight long ones, four of them beside those of ten minutes."""
    return [
        (
            Outage(Kind.NODE, Mode.REFUSE, 600.0, name="node-ten-minutes"),
            Outage(Kind.MLFLOW, Mode.ERROR, _long(choose), start=30.0),
            Outage(Kind.PREFECT, Mode.REFUSE, _long(choose), start=330.0),
        ),
        (
            Outage(Kind.JUDGE, Mode.REFUSE, 600.0, name="judge-ten-minutes"),
            Outage(Kind.LEDGER, Mode.REFUSE, _long(choose), start=40.0),
            Outage(Kind.TOOL, Mode.REFUSE, _long(choose), start=340.0),
        ),
        (Outage(Kind.JUDGE, Mode.REFUSE, 180.0, name="judge-three-minutes"),),
        (Outage(Kind.STORE, Mode.REFUSE, _long(choose, 150.0)),),
        (Outage(Kind.LEDGER, Mode.REFUSE, _long(choose, 150.0)),),
        (Outage(Kind.TOOL, Mode.ERROR, _long(choose, 150.0)),),
        (Outage(Kind.NODE, Mode.REFUSE, 60.0, name="node-one-minute"),),
    ]


def _long(choose: random.Random, most: float = 235.0) -> float:
    return choose.uniform(122.0, most)


def _short_slot(choose: random.Random, kinds: Iterable[Kind]) -> Slot:
    """Returns one to three short outages of different things that overlap."""
    count = choose.choice((1, 2, 2, 3))
    wanted: list[Kind] = []
    for kind in kinds:
        if kind not in wanted:
            wanted.append(kind)
        if len(wanted) == count:
            break
    return tuple(
        _short(choose, kind, start=choose.uniform(0.0, 6.0) if place else 0.0) for place, kind in enumerate(wanted)
    )


def _short(choose: random.Random, kind: Kind, seconds: float | None = None, start: float = 0.0) -> Outage:
    lasts = choose.triangular(8.0, 58.0, 18.0) if seconds is None else seconds
    return Outage(kind, choose.choice(MODES[kind]), round(lasts, 1), round(start, 1))


def _endless(choose: random.Random, kinds: Sequence[Kind]) -> Iterable[Kind]:
    """Yields kinds for ever, each as often as the others."""
    while True:
        mixed = list(kinds)
        choose.shuffle(mixed)
        yield from mixed


def _masking_slots(choose: random.Random) -> tuple[Slot, ...]:
    def part(kind: Kind, start: float = 0.0) -> Outage:
        return Outage(kind, Mode.THIRD, round(choose.uniform(20.0, 45.0), 1), round(start, 1))

    return (
        (part(Kind.JUDGE),),
        (part(Kind.TOOL),),
        (part(Kind.JUDGE), part(Kind.TOOL, 4.0), part(Kind.STORE, 8.0)),
    )
