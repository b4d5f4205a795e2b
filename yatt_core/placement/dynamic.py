"""`dynamic`: plans an iteration by replaying what the last ones were made of under many conducts, and keeps the best.

Consumes the facts of the pool and the telemetry of past iterations; produces the start's roles, the knobs of the curve to
follow within the iteration, the predicted seconds and the reason. A start changes only for a gain beyond the hysteresis.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.campaign import collect
from yatt_core.placement.curve import Curve, Knobs
from yatt_core.placement.fitting import fitted
from yatt_core.placement.seen import IterationTelemetry, Plan, Setting
from yatt_core.placement.work import SampleWork, WaveWork

HYSTERESIS = 0.025
JUDGE_SHARES = (0.0, 0.06, 0.12, 0.2, 0.3, 0.45)
POWERS = (0.0, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
COARSE_POWERS = (0.0, 0.5, 1.0)
ROUNDS, LEADERS = 3, 2
"""Of the local search: in each round the neighbours of the best so far are tried."""
FINALISTS = 5
REPLAYED = 2
"""Iterations that the finalists are replayed on."""
MOST_INSTANCES, MOST_SAMPLES = 64, 2048
"""Of what is replayed; of a larger pool every n-th instance and group stand for all."""


class Dynamic:
    """fit: the engines' time constants come from telemetry, whatever the setting says of them."""

    def __init__(self, fit: bool = False) -> None:
        self._fit = fit

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """The best of the candidates on the work of the last iterations."""
        if self._fit:
            setting = fitted(setting, past)
        held = Knobs(**state["knobs"]) if state else None
        trial = _Trial(setting, expected_work(setting, past), past[-1].roles if past else None)
        leaders = search(trial, held)
        seconds = {knobs: trial.seconds(knobs, len(trial.work)) for knobs in finalists(leaders, held)}
        best = chosen(seconds, held)
        roles = roles_of(setting.speeds, best.judges)
        predicted = seconds[best] / len(trial.work)
        reason = (
            f"{best.judges} of {len(setting.speeds)} instances judge from the start, rollout's share falls with power "
            f"{best.power:g} of the samples alive: {predicted:.1f} s on "
            + (f"the work of the last {len(trial.work)} iterations" if past else "the work of an assumed iteration")
            + f", the best of {len(trial.tried)} tried"
        )
        return Plan(roles, Curve(best, roles, setting), predicted, reason, {"knobs": asdict(best)})


class _Trial:
    """Replays of the work of past iterations, on a pool of the same kind that may be smaller. tried: seconds of the newest."""

    def __init__(self, setting: Setting, work: list[list[WaveWork]], before: str | None) -> None:
        samples = max(len(wave.samples) for wave in work[0])
        self.step = max(1, -(-len(setting.speeds) // MOST_INSTANCES), -(-samples // MOST_SAMPLES))
        self.count = len(setting.speeds)
        self.setting = replace(setting, speeds=setting.speeds[:: self.step])
        self.work = [[thinned(wave, self.step) for wave in waves] for waves in work]
        self.tried: dict[Knobs, float] = {}
        self._before = before[:: self.step] if before is not None else None

    def seconds(self, knobs: Knobs, iterations: int) -> float:
        """Seconds of collect under a curve, over some of the iterations; the change of start is paid in the first."""
        speeds = self.setting.speeds
        roles = roles_of(speeds, min(len(speeds) - 1, round(knobs.judges / self.step)))
        conduct = Curve(knobs, roles, self.setting)
        return math.fsum(
            collect(self.setting, roles, conduct, waves, None if number else self._before).collect_s
            for number, waves in enumerate(self.work[:iterations])
        )

    def try_out(self, knobs: Iterable[Knobs]) -> None:
        """Replays the newest iteration under those that were not tried yet."""
        for each in knobs:
            if each not in self.tried:
                self.tried[each] = self.seconds(each, 1)

    def leaders(self, count: int) -> list[Knobs]:
        """The best so far."""
        return sorted(self.tried, key=lambda knobs: (self.tried[knobs], *_order(knobs)))[:count]


def search(trial: _Trial, held: Knobs | None) -> list[Knobs]:
    """A coarse grid, then the neighbours of the best."""
    count, step = trial.count, trial.step
    backs = (True, False) if len(trial.work[0]) > 1 else (True,)
    judges = {min(count - step, step * round(count * share / step)) for share in JUDGE_SHARES}
    trial.try_out(Knobs(j, power, True, back) for j in sorted(judges) for power in COARSE_POWERS for back in backs)
    if held is not None:
        trial.try_out([held, *neighbours(held, trial)])
    for _ in range(ROUNDS):
        for leader in trial.leaders(LEADERS):
            trial.try_out(neighbours(leader, trial))
    return trial.leaders(FINALISTS)


def neighbours(knobs: Knobs, trial: _Trial) -> list[Knobs]:
    """One step further in each direction."""
    judges = (knobs.judges - trial.step, knobs.judges + trial.step)
    place = POWERS.index(knobs.power)
    return [
        *(replace(knobs, judges=j) for j in judges if 0 <= j < trial.count),
        *(
            replace(knobs, power=power)
            for power in (*POWERS[max(0, place - 1) : place], *POWERS[place + 1 : place + 2])
        ),
    ]


def finalists(leaders: Sequence[Knobs], held: Knobs | None) -> list[Knobs]:
    """The leaders with and without levelling; beside them the start in force, which is the one to beat, under their powers."""
    powers = dict.fromkeys(leader.power for leader in leaders[:2])
    kept = [] if held is None else [held, *(replace(held, power=power) for power in powers)]
    return list(dict.fromkeys(k for each in (*leaders, *kept) for k in (each, replace(each, level=not each.level))))


def chosen(seconds: Mapping[Knobs, float], held: Knobs | None) -> Knobs:
    """The best; of those with the start in force, where they are within the hysteresis."""
    best = min(seconds, key=lambda knobs: (seconds[knobs], *_order(knobs)))
    if held is None:
        return best
    kept = min(
        (knobs for knobs in seconds if knobs.judges == held.judges), key=lambda knobs: (seconds[knobs], *_order(knobs))
    )
    return kept if seconds[kept] <= seconds[best] * (1.0 + HYSTERESIS) else best


def _order(knobs: Knobs) -> tuple[float, ...]:
    return (knobs.judges, knobs.power, knobs.level, knobs.back)


def roles_of(speeds: Sequence[float], judges: int) -> str:
    """The slowest instances judge; among equals the last."""
    order = sorted(range(len(speeds)), key=lambda i: (speeds[i], -i))[:judges]
    slowest = set(order)
    return "".join(JUDGE if i in slowest else ROLLOUT for i in range(len(speeds)))


# -- the work to come ----------------------------------------------------------------------------------------------------

ASSUMED_PROMPT, ASSUMED_RESPONSE, ASSUMED_JUDGEMENT, ASSUMED_GROUP = 300, 1500, 400, 8


def expected_work(setting: Setting, past: Sequence[IterationTelemetry]) -> list[list[WaveWork]]:
    """Iterations like the one to come, the likeliest first."""
    if not past:
        return [assumed_work(setting)]
    recent = past[-REPLAYED:][::-1]
    return [scaled(list(i.waves), factor) for i, factor in zip(recent, trend(past), strict=False)]


def thinned(wave: WaveWork, step: int) -> WaveWork:
    """Every step-th group."""
    if step == 1:
        return wave
    samples = tuple(sample for sample in wave.samples if sample.group % step == 0)
    return WaveWork(samples, wave.valid[::step])


def trend(past: Sequence[IterationTelemetry]) -> list[float]:
    """Factors on the lengths of the last iterations' responses, newest first, by which they resemble those to come."""
    if len(past) < 2:
        return [1.0] * len(past)
    sizes = [_centre(iteration) for iteration in past[-4:]]
    noise = max(_noise(iteration) for iteration in past[-4:])
    steps = [math.log(b / a) for a, b in itertools.pairwise(sizes)]
    growing = all(step > noise for step in steps) or all(step < -noise for step in steps)
    if len(steps) < 2 or not growing:
        return [1.0] * len(past)
    expected = max(sizes[-1] + statistics.mean(b - a for a, b in itertools.pairwise(sizes)), sizes[-1] / 2)
    return [expected / size for size in sizes[::-1]]


def _centre(iteration: IterationTelemetry) -> float:
    return math.exp(np.mean([math.log(sample.response) for wave in iteration.waves for sample in wave.samples]))


def _noise(iteration: IterationTelemetry) -> float:
    """Standard error of the logarithm of the centre, groups taken as independent."""
    logs: dict[tuple[int, int], list[float]] = {}
    for number, wave in enumerate(iteration.waves):
        for sample in wave.samples:
            logs.setdefault((number, sample.group), []).append(math.log(sample.response))
    means = [statistics.mean(values) for values in logs.values()]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 1.0


def scaled(waves: list[WaveWork], factor: float) -> list[WaveWork]:
    """The waves with longer or shorter responses."""
    if factor == 1.0:
        return waves
    return [replace(wave, samples=tuple(_scaled(sample, factor) for sample in wave.samples)) for wave in waves]


def _scaled(sample: SampleWork, factor: float) -> SampleWork:
    return replace(sample, turns=tuple(max(1, round(tokens * factor)) for tokens in sample.turns))


def assumed_work(setting: Setting) -> list[WaveWork]:
    """Work to plan the first iteration with, when nothing is known: log-normal lengths of the usual size."""
    rng = np.random.Generator(np.random.PCG64(0))
    shape = (setting.prompts, ASSUMED_GROUP)
    responses = np.maximum(16, ASSUMED_RESPONSE * np.exp(0.6 * rng.standard_normal(shape))).astype(int)
    judge = np.maximum(16, ASSUMED_JUDGEMENT * np.exp(0.4 * rng.standard_normal((*shape, setting.judgements)))).astype(
        int
    )
    samples = tuple(
        SampleWork(
            group,
            sample == 0,
            ASSUMED_PROMPT,
            (int(responses[group, sample]),),
            (),
            tuple(judge[group, sample].tolist()),
        )
        for group in range(setting.prompts)
        for sample in range(ASSUMED_GROUP)
    )
    return [WaveWork(samples, (True,) * setting.prompts)]
