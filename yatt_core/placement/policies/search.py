"""Searches for the curve's fastest parameters: candidates are replayed on likely worlds of the next iteration.

Consumes a setting, telemetry and the parameters in force; produces the seconds of the best candidates. A pool too
large to replay is replaced by a smaller one of the same kind. The loss penalises steps away from the parameters
that suit most loads; otherwise the search would overfit the last few sequences of a single world.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.expected import assumed_sequences, expected_work, sequences_of
from yatt_core.placement.seen import IterationTelemetry, Setting
from yatt_core.placement.simulation.campaign import collect
from yatt_core.placement.simulation.simulator import IterationTooLongError

JUDGE_SHARES = (0.0, 0.06, 0.12, 0.25, 0.4, 0.5)
ONSETS = (1.0, 0.7, 0.45, 0.3, 0.2)
POWERS = (0.0, 0.3, 0.5, 0.75, 1.0, 1.5)
BACKLOGS = (0.0, 0.5, 1.0, 1.5, 2.0)
SHAPES = ((0.7, 0.75, 1.5), (0.7, 0.5, 0.5), (0.7, 0.0, 1.5))
"""Initial values of onset, power and backlog.

The first triple suits most loads; with the last one, no instance switches before all of them can.
"""
ROUNDING = 1e-9
"""Relative error of seconds that are stored as a logarithm."""
STEP_LOSS = 0.005
"""Each step away from the usual shape must gain at least this fraction of the seconds."""
LEADERS = (2, 1)
"""Local search: in each round, the neighbours of this many of the best candidates are tried."""
FINALISTS = 8
OTHERWISE = 2
LAST = 4
"""Numbers of candidates: after one world, the `FINALISTS` best are kept and ranked on two worlds; of these, the `LAST`
best are ranked on all worlds. The first `OTHERWISE` are also tried with `level` inverted.
"""
MOST_INSTANCES = 64
MOST_SEQUENCES = 4400
LEAST_INSTANCES = 8
"""Limits of a replay; of a larger pool, only every n-th instance and group is replayed.

Each turn or judgement is a sequence.
"""


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A candidate's result.

    seconds: seconds of collect, as the geometric mean over the worlds.
    loss: logarithm of the seconds plus the penalty for steps.
    """

    knobs: Knobs
    seconds: float
    loss: float


class Search:
    """Replays candidates on worlds like the next iteration.

    before: roles at the start of the newest iteration; None before the first one.
    replays: number of replays so far.
    """

    def __init__(self, setting: Setting, past: Sequence[IterationTelemetry], before: str | None = None) -> None:
        self.count = len(setting.speeds)
        sequences = sequences_of(past[-1]) if past else assumed_sequences(setting)
        step = max(1, math.ceil(self.count / MOST_INSTANCES), math.ceil(sequences / MOST_SEQUENCES))
        self.step = min(step, max(1, self.count // LEAST_INSTANCES))
        self.worlds = expected_work(setting, past, self.step)
        speeds = setting.speeds[:: self.step]
        lent = min(math.ceil(setting.lent / self.step), len(speeds) - 1)
        self._setting = replace(setting, speeds=speeds, lent=lent)
        # An instance that is on no device of the trainer's rolls out from the start.
        self._most_judges = self.count - setting.lent - 1
        self._before = None if before is None else before[:: self.step]
        self._logs: dict[tuple[Knobs, int], float] = {}
        self._given_up: set[Knobs] = set()
        self.replays = 0

    def best(self, held: Knobs | None) -> list[CandidateResult]:
        """Returns the finalists, and the parameters in force if there are any, best first."""
        tried = dict.fromkeys(self._beginning())
        if held is not None:
            tried |= dict.fromkeys([held, *self._neighbours(held)])
        for leaders in LEADERS:
            for leader in self._first(tried)[:leaders]:
                tried |= dict.fromkeys(self._neighbours(leader.knobs))
        best = [outcome.knobs for outcome in self._first(tried)]
        finalists = [*best, *(replace(knobs, level=not knobs.level) for knobs in best[:OTHERWISE])]
        if held is not None:
            finalists += [held, *(replace(knobs, judges=held.judges) for knobs in best[: FINALISTS // 2])]
        last = [outcome.knobs for outcome in self._ranked(finalists, 2)]
        starts = [knobs for knobs in last if held is not None and knobs.judges == held.judges]
        return self._ranked([*last[:LAST], *starts[: LAST // 2]], len(self.worlds))

    def _beginning(self) -> Iterable[Knobs]:
        judges = {self.step * round(self.count * share / self.step) for share in JUDGE_SHARES}
        most = max(0, min(self.count - self.step, self._most_judges))
        counts = sorted({min(count, most) for count in judges})
        return (Knobs(count, *shape) for count in counts for shape in SHAPES)

    def _neighbours(self, knobs: Knobs) -> list[Knobs]:
        """Returns the parameters one step away in each direction."""
        judges = (knobs.judges - self.step, knobs.judges + self.step)
        near = [replace(knobs, judges=count) for count in judges if 0 <= count <= self._most_judges]
        near += [replace(knobs, onset=onset) for onset in beside(ONSETS, knobs.onset)]
        near += [replace(knobs, power=power) for power in beside(POWERS, knobs.power)]
        near += [replace(knobs, backlog=backlog) for backlog in beside(BACKLOGS, knobs.backlog)]
        return [*near, replace(knobs, back=not knobs.back)] if len(self.worlds[0]) > 1 else near

    def _first(self, knobs: Iterable[Knobs]) -> list[CandidateResult]:
        """Returns the best of some candidates on one world, at most `FINALISTS`.

        A candidate that is slower than all finalists so far is not replayed to the end.
        """
        found: list[CandidateResult] = []
        for each in knobs:
            if each in self._given_up:
                continue
            if (each, 0) not in self._logs and len(found) == FINALISTS:
                loss = STEP_LOSS * steps_away(each)
                if self._replayed(each, 0, math.exp(found[-1].loss - loss) * (1.0 + ROUNDING)) is None:
                    self._given_up.add(each)
                    continue
            found = sorted([*found, self._outcome(each, 1)], key=_rank)[:FINALISTS]
        return found

    def _ranked(self, knobs: Iterable[Knobs], worlds: int) -> list[CandidateResult]:
        outcomes = (self._outcome(each, worlds) for each in dict.fromkeys(knobs))
        return sorted(outcomes, key=_rank)

    def _outcome(self, knobs: Knobs, worlds: int) -> CandidateResult:
        log = math.fsum(self._log_seconds(knobs, world) for world in range(worlds)) / worlds
        return CandidateResult(knobs, math.exp(log), log + STEP_LOSS * steps_away(knobs))

    def _log_seconds(self, knobs: Knobs, world: int) -> float:
        if (knobs, world) not in self._logs:
            self._replayed(knobs, world, math.inf)
        return self._logs[knobs, world]

    def _replayed(self, knobs: Knobs, world: int, longest_s: float) -> float | None:
        """Returns the logarithm of the replay's seconds; None if they exceed `longest_s`.

        If the initial roles differ from the current ones, the first world includes the time for changing them.
        """
        speeds = self._setting.speeds
        self.replays = self.replays + 1
        lent = self._setting.lent
        roles = roles_of(speeds, min(len(speeds) - lent - 1, round(knobs.judges / self.step)), lent)
        runtime_policy = CurvePolicy(knobs, roles, self._setting)
        before = None if world else self._before
        try:
            replay = collect(
                setting=self._setting,
                roles=roles,
                runtime_policy=runtime_policy,
                waves=self.worlds[world],
                before=before,
                longest_s=longest_s,
            )
        except IterationTooLongError:
            return None
        return self._logs.setdefault((knobs, world), math.log(replay.collect_s))


def beside(values: Sequence[float], value: float) -> Sequence[float]:
    """Returns the values adjacent to one of them."""
    place = values.index(value)
    return (*values[max(0, place - 1) : place], *values[place + 1 : place + 2])


def steps_away(knobs: Knobs) -> int:
    """Returns the number of steps from the shape that suits most loads."""
    onset, power, backlog = SHAPES[0]
    return sum(
        abs(values.index(value) - values.index(usual))
        for values, value, usual in (
            (ONSETS, knobs.onset, onset),
            (POWERS, knobs.power, power),
            (BACKLOGS, knobs.backlog, backlog),
        )
    )


def _rank(outcome: CandidateResult) -> tuple[float, ...]:
    """Sorts by loss, and for equal losses by the parameters."""
    knobs = outcome.knobs
    return (outcome.loss, knobs.judges, knobs.onset, knobs.power, knobs.backlog, knobs.level, knobs.back)


def roles_of(speeds: Sequence[float], judges: int, lent: int = 0) -> str:
    """Returns the roles with the slowest instances as judges; of equally fast ones, the last.

    lent: number of the first instances that judge only if all others do, since the trainer may keep their devices.
    """
    slowest = set(sorted(range(len(speeds)), key=lambda i: (i < lent, speeds[i], -i))[:judges])
    return "".join(JUDGE if i in slowest else ROLLOUT for i in range(len(speeds)))
