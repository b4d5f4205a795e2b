"""Drives the campaign's runs: takes things away by the plan, brings them back, and waits until the run has gone on.

Consumes a plan, a bed of hosts and services, and a spec. Produces for each run what was done to it and what was seen of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.outside.schedule import WAITED_FOR, Kind, Mode, Outage, Slot, slot_seconds
from benchmarks.outside.watch import Seen, Watch, now_ms
from flows.run.creation import create_run
from tests.hosts.campaign.bed import Bed
from tests.hosts.campaign.operator import Operator
from tests.waiting import holds_in_time
from yatt_core.spec import RunSpec

BEGIN_SECONDS = 300.0
GO_ON_SECONDS = 240.0
"""How long a run may take to go on after a slot before the campaign counts it as stuck."""
NEXT_SECONDS = 4.0
"""Between the progress after a slot and the next slot."""
TELL_SECONDS = 15.0
"""Between two lines about what a run does."""
POLL_SECONDS = 0.1
TEND_SECONDS = 0.5

Say = Callable[[str], None]


@dataclass
class Struck:
    """An outage that has been. Times are milliseconds since 1970.

    away, back: when it began and ended; a node is back once its part of the cluster is.
    other_back: the end of the last outage, of what a run waits for, that had begun before this one ended.
    """

    outage: Outage
    away: int
    back: int = 0
    other_back: int = 0


@dataclass
class Driven:
    """A run of the campaign.

    began, ended: in milliseconds since 1970.
    struck: its outages in order.
    exits: drivers that ended by themselves.
    stuck: slots after which the run did not go on.
    """

    run: str
    began: int
    struck: list[Struck] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    exits: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    ended: int = 0


class Driver:
    """Drives one run on a bed.

    until: when no further slot may begin, by the monotonic clock.
    """

    def __init__(self, bed: Bed, operator: Operator, watch: Watch, driven: Driven, say: Say, until: float) -> None:
        self._bed = bed
        self._operator = operator
        self._watch = watch
        self._driven = driven
        self._say = say
        self._until = until
        self._tended = self._told = 0.0
        self._away: dict[Kind, Struck] = {}

    def drive(self, slots: Sequence[Slot]) -> None:
        """Takes things away, slot by slot."""
        self._begin()
        for number, slot in enumerate(slots, 1):
            if time.monotonic() > self._until:
                self._say(f"no time for {len(slots) - number + 1} of {len(slots)} slots")
                return
            self._say(f"slot {number} of {len(slots)}: {', '.join(map(str, slot))}; {slot_seconds(slot):.0f} s")
            self._strike(slot)

    def _begin(self) -> None:
        if not self._wait_for(lambda: self._watch.seen.iteration >= 1, BEGIN_SECONDS):
            raise RuntimeError(f"the run does not begin: {self._operator.exits}")

    def _strike(self, slot: Slot) -> None:
        began = time.monotonic()
        events = sorted(
            [(outage.start, True, number) for number, outage in enumerate(slot)]
            + [(outage.end, False, number) for number, outage in enumerate(slot)]
        )
        struck: dict[int, Struck] = {}
        for at, begins, number in events:
            self._wait_for(lambda: False, began + at - time.monotonic())
            if begins:
                struck[number] = self._take_away(slot[number])
            else:
                self._bring_back(struck[number])
        waited = [each for each in struck.values() if each.outage.kind in WAITED_FOR]
        for each in struck.values():
            each.other_back = max([each.back, *(other.back for other in waited if other.away < each.back)])
        last = max(each.back for each in struck.values())
        if self._wait_for(lambda: self._watch.progress_since(last) is not None, GO_ON_SECONDS):
            self._say(f"the run has gone on after {(now_ms() - last) / 1000:.1f} s")
        else:
            self._driven.stuck.append(", ".join(map(str, slot)))
            self._say(f"the run does not go on: {self._operator.exits}")
        self._wait_for(lambda: False, NEXT_SECONDS)

    def _take_away(self, outage: Outage) -> Struck:
        if outage.kind == Kind.NODE:
            self._operator.hosts[-1].power_off()
        else:
            set_gate(self._bed, outage.kind, outage.mode)
        struck = Struck(outage, now_ms())
        self._away[outage.kind] = struck
        self._driven.struck.append(struck)
        self._say(f"{outage} is away until {time.strftime('%H:%M:%S', time.localtime(time.time() + outage.seconds))}")
        return struck

    def _bring_back(self, struck: Struck) -> None:
        outage = struck.outage
        if outage.kind == Kind.NODE:
            host = self._operator.hosts[-1]
            host.power_on()
            self._wait_for(lambda: self._operator.is_ready(host), GO_ON_SECONDS)
        else:
            set_gate(self._bed, outage.kind, None)
        struck.back = now_ms()
        struck.other_back = struck.back
        self._away.pop(outage.kind)
        self._say(f"{outage} is back")

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Tends the run until a condition holds; returns False if it does not within `seconds`."""
        held: bool = holds_in_time(condition, seconds, self._tend, POLL_SECONDS)
        return held

    def _tend(self) -> None:
        now = time.monotonic()
        if now - self._tended >= TEND_SECONDS:
            self._operator.tend()
            self._tended = now
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self._say(self._what())

    def _what(self) -> str:
        seen = self._watch.seen
        text = f"{self._driven.run} is {seen.state or 'not created'}, iteration {seen.iteration}"
        if seen.wait is not None:
            given = "" if seen.wait.returned_at is None else ", its devices are given back"
            text += f", waits for {seen.wait.dependency} for {(now_ms() - seen.wait.since) / 1000:.0f} s{given}"
        return text + (f"; away: {', '.join(map(str, self._away))}" if self._away else "")


def set_gate(bed: Bed, kind: Kind, mode: Mode | None) -> None:
    """Takes a service away, or brings it back. Raises `RuntimeError` if the services have ended."""
    said = bed.tell(json.dumps({"gate": kind, "mode": mode}))
    if not said:
        raise RuntimeError("the services on the storage host have ended; see storage.log in the campaign's folder")


def struck_run(bed: Bed, spec: RunSpec, slots: Sequence[Slot], say: Say, until: float) -> Driven:
    """Creates a run, takes things away from it by the plan, and stops it in order."""
    with driving(bed, spec) as (operator, watch, driven):
        driver = Driver(bed=bed, operator=operator, watch=watch, driven=driven, say=say, until=until)
        try:
            driver.drive(slots)
        finally:
            operator.stop()
    say(f"{driven.run} has been stopped at iteration {driven.seen.iteration}")
    return driven


def undisturbed(bed: Bed, spec: RunSpec, iterations: int, say: Say) -> Driven:
    """Drives a run while nothing is away, and stops it in order once it has some iterations.

    Raises `RuntimeError` if its driver ends before.
    """
    with driving(bed, spec) as (operator, watch, driven):
        told = time.monotonic()
        while watch.seen.iteration < iterations:
            operator.tend()
            if operator.exits:
                raise RuntimeError(f"the undisturbed driver ended: {operator.exits}")
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                say(f"{driven.run} is undisturbed, iteration {watch.seen.iteration} of {iterations}")
            time.sleep(TEND_SECONDS)
        operator.stop()
    say(f"{driven.run} has been stopped at iteration {watch.seen.iteration}")
    return driven


@contextmanager
def driving(bed: Bed, spec: RunSpec) -> Iterator[tuple[Operator, Watch, Driven]]:
    """Creates a run and watches it; ends its processes."""
    run: Any = create_run(bed.home, spec)
    operator = Operator(bed, run, bed.compute)
    driven = Driven(run, now_ms())
    with Watch(bed.ledger, run, bed.home.run_folder(run)) as watch:
        driven.seen = watch.seen
        try:
            yield operator, watch, driven
        finally:
            operator.end()
            driven.exits = operator.exits
            driven.ended = now_ms()
