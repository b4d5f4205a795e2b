"""`dynamic`: plans an iteration by replaying what the last ones were made of under many conducts, and keeps the best.

Consumes the facts of the pool and the telemetry of past iterations; produces the start's roles, the knobs of the curve to
follow within the iteration, the predicted seconds and the reason. A start changes only for a gain beyond the hysteresis.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.campaign import collect
from yatt_core.placement.curve import Curve, Knobs
from yatt_core.placement.fitting import fitted
from yatt_core.placement.seen import IterationTelemetry, Plan, Setting
from yatt_core.placement.work import SampleWork, WaveWork

HYSTERESIS = 0.025
JUDGE_SHARES = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
POWERS = (0.0, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
FINALISTS = 6
REPLAYED = 2
"""Iterations that the finalists are replayed on."""
ASSUMED_PROMPT, ASSUMED_RESPONSE, ASSUMED_JUDGEMENT, ASSUMED_GROUP = 300, 1500, 400, 8


class Dynamic:
    """fit: the engines' time constants come from telemetry, whatever the setting says of them."""

    def __init__(self, fit: bool = False) -> None:
        self._fit = fit

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """The best of the candidates on the work of the last iterations."""
        if self._fit:
            setting = fitted(setting, past)
        before = past[-1].roles if past else None
        recent = [scaled(list(i.waves), f) for i, f in zip(past[-REPLAYED:][::-1], trend(past), strict=False)]
        recent = recent or [assumed_work(setting)]
        held = Knobs(**state["knobs"]) if state else None
        trial = _Trial(setting, recent, before)
        firsts = sorted(
            candidates(setting, recent[0], held), key=lambda knobs: (trial.seconds(knobs, 1), *_order(knobs))
        )
        finalists = {k for first in firsts[:FINALISTS] for k in (first, replace(first, level=not first.level))}
        if held is not None:
            # The start that is in force, under its best curve, is the one to beat.
            finalists |= set([k for k in firsts if k.judges == held.judges][:2])
        seconds = {knobs: trial.seconds(knobs, len(recent)) for knobs in finalists}
        best = min(seconds, key=lambda k: (seconds[k], *_order(k)))
        if held is not None:
            kept = min((k for k in seconds if k.judges == held.judges), key=lambda k: (seconds[k], *_order(k)))
            if seconds[kept] <= seconds[best] * (1.0 + HYSTERESIS):
                best = kept
        roles = roles_of(setting.speeds, best.judges)
        predicted = seconds[best] / len(recent)
        reason = (
            f"{best.judges} of {len(setting.speeds)} instances judge from the start, rollout's share falls with power "
            f"{best.power:g} of the samples alive: {predicted:.1f} s on the work of "
            + (f"the last {len(recent)} iterations" if past else "an assumed iteration")
            + f", of {len(firsts)} curves tried"
        )
        return Plan(roles, Curve(best, roles, setting), predicted, reason, {"knobs": asdict(best)})


@dataclass(slots=True)
class _Trial:
    """Replays of the work of past iterations."""

    setting: Setting
    work: list[list[WaveWork]]
    before: str | None

    def seconds(self, knobs: Knobs, iterations: int) -> float:
        """Seconds of collect under a curve, over some of the iterations; the change of start is paid in the first."""
        roles = roles_of(self.setting.speeds, knobs.judges)
        return math.fsum(
            collect(
                self.setting, roles, Curve(knobs, roles, self.setting), waves, None if number else self.before
            ).collect_s
            for number, waves in enumerate(self.work[:iterations])
        )


def _order(knobs: Knobs) -> tuple[float, ...]:
    return (knobs.judges, knobs.power, knobs.level, knobs.back)


def candidates(setting: Setting, work: Sequence[WaveWork], held: Knobs | None) -> Iterable[Knobs]:
    """Curves to try."""
    count = len(setting.speeds)
    judges = {min(count - 1, math.floor(count * share + 0.5)) for share in JUDGE_SHARES}
    if held is not None:
        judges |= {j for j in (held.judges - 1, held.judges, held.judges + 1) if 0 <= j < count}
    backs = (True, False) if len(work) > 1 else (True,)
    return [Knobs(j, power, True, back) for j in sorted(judges) for power in POWERS for back in backs]


def roles_of(speeds: Sequence[float], judges: int) -> str:
    """The slowest instances judge; among equals the last."""
    order = sorted(range(len(speeds)), key=lambda i: (speeds[i], -i))[:judges]
    chosen = set(order)
    return "".join(JUDGE if i in chosen else ROLLOUT for i in range(len(speeds)))


# -- the work to come ----------------------------------------------------------------------------------------------------


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
