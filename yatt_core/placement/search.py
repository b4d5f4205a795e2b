"""Which knobs of the curve collect fastest: candidates are replayed on the worlds that the next iteration may be like.

Consumes a setting, telemetry and the knobs in force; produces the seconds of the best few. A pool too large to replay is thinned
to one of the same kind. The loss counts steps away from what suits most loads, or knobs would follow a world's own tail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.campaign import collect
from yatt_core.placement.curve import Curve, Knobs
from yatt_core.placement.expected import assumed_sequences, expected_work, sequences_of
from yatt_core.placement.seen import IterationTelemetry, Setting

JUDGE_SHARES = (0.0, 0.06, 0.12, 0.25, 0.4, 0.5)
ONSETS = (1.0, 0.7, 0.45, 0.3, 0.2)
POWERS = (0.0, 0.3, 0.5, 0.75, 1.0, 1.5)
BACKLOGS = (0.0, 0.5, 1.0, 1.5, 2.0)
SHAPES = ((0.7, 0.75, 1.5), (0.7, 0.5, 0.5), (0.7, 0.0, 1.5))
"""Onset, power and backlog to begin with. The first suits most loads; with the last one nobody goes over before all can."""
STEP_LOSS = 0.005
"""A step away from it has to gain this share of the seconds."""
ROUNDS, LEADERS = 2, 2
"""Of the local search: in each round the neighbours of the best so far are tried."""
SEARCHED = 1
"""Worlds that all candidates are replayed on; the finalists run on all."""
FINALISTS, OTHERWISE = 8, 2
"""Of which so many are tried without levelling, too."""
MOST_INSTANCES, MOST_SEQUENCES, LEAST_INSTANCES = 64, 3072, 8
"""Of what is replayed; of a larger pool every n-th instance and group stand for all. A turn or a judgement is a sequence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A candidate's seconds of collect (geometric mean over the worlds), and its loss: their logarithm and the steps'."""

    knobs: Knobs
    seconds: float
    loss: float


class Search:
    """Replays of candidates on worlds like the iteration behind the past ones, each once."""

    def __init__(self, setting: Setting, past: Sequence[IterationTelemetry]) -> None:
        self.count = len(setting.speeds)
        sequences = sequences_of(past[-1]) if past else assumed_sequences(setting)
        step = max(1, math.ceil(self.count / MOST_INSTANCES), math.ceil(sequences / MOST_SEQUENCES))
        self.step = min(step, max(1, self.count // LEAST_INSTANCES))
        self.worlds = expected_work(setting, past, self.step)
        self._setting = replace(setting, speeds=setting.speeds[:: self.step])
        self._before = past[-1].roles[:: self.step] if past else None
        self._logs: dict[tuple[Knobs, int], float] = {}

    def best(self, held: Knobs | None) -> list[Outcome]:
        """The finalists, and the knobs in force if there are any, the best one first."""
        tried = dict.fromkeys(self._beginning())
        if held is not None:
            tried |= dict.fromkeys([held, *self._neighbours(held)])
        for _ in range(ROUNDS):
            for leader in self._leaders(tried)[:LEADERS]:
                tried |= dict.fromkeys(self._neighbours(leader))
        leaders = self._leaders(tried)
        finalists = leaders[:FINALISTS]
        if held is not None:
            finalists += [held, *(replace(leader, judges=held.judges) for leader in leaders[: FINALISTS // 2])]
        finalists += [replace(leader, level=not leader.level) for leader in leaders[:OTHERWISE]]
        outcomes = [self._outcome(knobs, len(self.worlds)) for knobs in dict.fromkeys(finalists)]
        return sorted(outcomes, key=lambda outcome: (outcome.loss, *_order(outcome.knobs)))

    @property
    def replays(self) -> int:
        """How many there were."""
        return len(self._logs)

    def _beginning(self) -> Iterable[Knobs]:
        judges = {self.step * round(self.count * share / self.step) for share in JUDGE_SHARES}
        return (Knobs(min(count, self.count - self.step), *shape) for count in sorted(judges) for shape in SHAPES)

    def _neighbours(self, knobs: Knobs) -> list[Knobs]:
        """One step further in each direction."""
        judges = (knobs.judges - self.step, knobs.judges + self.step)
        near = [replace(knobs, judges=count) for count in judges if 0 <= count < self.count]
        near += [replace(knobs, onset=onset) for onset in beside(ONSETS, knobs.onset)]
        near += [replace(knobs, power=power) for power in beside(POWERS, knobs.power)]
        near += [replace(knobs, backlog=backlog) for backlog in beside(BACKLOGS, knobs.backlog)]
        return [*near, replace(knobs, back=not knobs.back)] if len(self.worlds[0]) > 1 else near

    def _leaders(self, tried: Iterable[Knobs]) -> list[Knobs]:
        return sorted(tried, key=lambda knobs: (self._outcome(knobs, SEARCHED).loss, *_order(knobs)))

    def _outcome(self, knobs: Knobs, worlds: int) -> Outcome:
        log = math.fsum(self._log_seconds(knobs, world) for world in range(worlds)) / worlds
        return Outcome(knobs, math.exp(log), log + STEP_LOSS * steps_away(knobs))

    def _log_seconds(self, knobs: Knobs, world: int) -> float:
        """The change of start is paid in the first world."""
        if (knobs, world) not in self._logs:
            speeds = self._setting.speeds
            roles = roles_of(speeds, min(len(speeds) - 1, round(knobs.judges / self.step)))
            conduct = Curve(knobs, roles, self._setting)
            replay = collect(self._setting, roles, conduct, self.worlds[world], None if world else self._before)
            self._logs[knobs, world] = math.log(replay.collect_s)
        return self._logs[knobs, world]


def beside(values: Sequence[float], value: float) -> Sequence[float]:
    """The values next to one of them."""
    place = values.index(value)
    return (*values[max(0, place - 1) : place], *values[place + 1 : place + 2])


def steps_away(knobs: Knobs) -> int:
    """Steps from the shape that suits most loads."""
    onset, power, backlog = SHAPES[0]
    return sum(
        abs(values.index(value) - values.index(usual))
        for values, value, usual in (
            (ONSETS, knobs.onset, onset),
            (POWERS, knobs.power, power),
            (BACKLOGS, knobs.backlog, backlog),
        )
    )


def _order(knobs: Knobs) -> tuple[float, ...]:
    return (knobs.judges, knobs.onset, knobs.power, knobs.backlog, knobs.level, knobs.back)


def roles_of(speeds: Sequence[float], judges: int) -> str:
    """The slowest instances judge; among equals the last."""
    slowest = set(sorted(range(len(speeds)), key=lambda i: (speeds[i], -i))[:judges])
    return "".join(JUDGE if i in slowest else ROLLOUT for i in range(len(speeds)))
