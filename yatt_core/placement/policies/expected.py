"""The work that the next iteration may bring: worlds on which candidates are replayed, built from recent telemetry.

Consumes telemetry; produces waves of samples. Iterations with a different load than the newest one are left out,
steady growth of lengths is extrapolated, and if few iterations remain, further worlds are resampled from their
groups. Without telemetry, assumed worlds are used: with short or long responses, each with short or long judgements.
Each random draw depends only on its number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from yatt_core.placement.seen import IterationTelemetry, Setting
from yatt_core.placement.work import SampleWork, WaveWork, split_turns

LOOKS_BACK = 4
"""Number of iterations whose telemetry is used; older ones need not be kept."""
LEAST_FOR_A_LINE = 3
SURE = 3.0
STRAYED = 3.0
"""Numbers of standard errors above which a slope is significant, and above which an iteration has a different load."""
LEAST_FACTOR = 0.5
MOST_FACTOR = 8.0

ASSUMED_MEDIANS = ((800.0, 400.0), (2500.0, 100.0), (800.0, 100.0), (2500.0, 400.0))
"""Median tokens of responses and judgements."""
ASSUMED_PROMPT = 300
ASSUMED_GROUP = 16
ASSUMED_TURNS = 4
ASSUMED_WAIT_S = 2.0
ASSUMED_SIGMA = 0.6
ASSUMED_RHO = 0.4
ASSUMED_JUDGE_SIGMA = 0.4

Lengths = Callable[[SampleWork], float]


@dataclass(frozen=True, slots=True)
class Size:
    """Length of an iteration's responses or judgements.

    tokens: geometric mean of the lengths.
    error: standard error of the geometric mean, with groups as independent samples.
    """

    tokens: float
    error: float


def expected_work(setting: Setting, past: Sequence[IterationTelemetry], step: int = 1) -> list[list[WaveWork]]:
    """Returns worlds resembling the coming iteration, the likeliest first, with only every step-th of their groups."""
    if not past:
        groups = math.ceil(setting.prompts / step)
        return [assumed_work(setting, groups, response, judgement) for response, judgement in ASSUMED_MEDIANS]
    recent = past[-LOOKS_BACK:]
    responses = likened([size_of(iteration, lambda sample: sample.response) for iteration in recent])
    judgements = likened([size_of(iteration, lambda sample: sum(sample.judge)) for iteration in recent])
    worlds = [
        scaled([thinned(wave, step) for wave in iteration.waves], response, judgement)
        for iteration, response, judgement in zip(recent[::-1], responses, judgements, strict=False)
    ]
    drawn = [drawn_anew(worlds[number % len(worlds)], number) for number in range(LOOKS_BACK - len(worlds))]
    return worlds + drawn


def size_of(iteration: IterationTelemetry, tokens: Lengths) -> Size:
    """Returns the size of an iteration's responses or judgements.

    Lengths of zero, such as a reward model's, count as one token.
    """
    groups: dict[tuple[int, int], list[float]] = defaultdict(list)
    for number, wave in enumerate(iteration.waves):
        for sample in wave.samples:
            groups[number, sample.group].append(math.log(max(1, tokens(sample))))
    means = np.array([sum(logs) / len(logs) for logs in groups.values()])
    mean = math.exp(float(means.mean()))
    error = mean * float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else mean
    return Size(mean, error)


def likened(sizes: Sequence[Size]) -> list[float]:
    """Returns factors, newest first, that scale recent iterations to the next one.

    Only iterations with the same load as the newest one get a factor. These are the longest series up to the newest
    iteration whose sizes lie on a line within the errors; a significant slope is extrapolated.
    """
    for count in range(len(sizes), 1, -1):
        last = sizes[-count:]
        tokens = np.array([size.tokens for size in last])
        error = max(size.error for size in last)
        number = np.arange(count) - (count - 1) / 2
        slope = float(number @ tokens / (number @ number))
        growing = abs(slope) > SURE * error / math.sqrt(float(number @ number))
        if growing and count < LEAST_FOR_A_LINE:
            continue
        line = tokens.mean() + (slope * number if growing else 0.0)
        if np.abs(tokens - line).max() <= STRAYED * error:
            if not growing:
                return [1.0] * count
            expected = float(tokens.mean()) + slope * (count + 1) / 2
            return [min(MOST_FACTOR, max(LEAST_FACTOR, expected / size)) for size in tokens[::-1].tolist()]
    return [1.0]


def scaled(waves: Sequence[WaveWork], response: float, judgement: float) -> list[WaveWork]:
    """Returns the waves with longer or shorter responses and judgements."""
    if response == judgement == 1.0:
        return list(waves)
    samples = [sample for wave in waves for sample in wave.samples]
    longest = limit_of([sample.response for sample in samples])
    most = limit_of([tokens for sample in samples for tokens in sample.judge])

    def longer(sample: SampleWork) -> SampleWork:
        factor = min(response, longest / sample.response)
        # 0 tokens stay 0: a reward model writes nothing.
        judge = tuple(max(min(1, tokens), round(min(tokens * judgement, most))) for tokens in sample.judge)
        return replace(sample, turns=tuple(max(1, round(tokens * factor)) for tokens in sample.turns), judge=judge)

    return [replace(wave, samples=tuple(longer(sample) for sample in wave.samples)) for wave in waves]


def limit_of(tokens: Sequence[int]) -> float:
    """Returns the length at which responses are truncated: the greatest length if several share it, else infinity."""
    greatest = max(tokens, default=0)
    return greatest if tokens.count(greatest) > 1 else math.inf


def drawn_anew(waves: Sequence[WaveWork], seed: int) -> list[WaveWork]:
    """Returns the waves with the same number of groups, drawn from each wave with replacement."""
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn: list[WaveWork] = []
    for wave in waves:
        groups: dict[int, list[SampleWork]] = defaultdict(list)
        for sample in wave.samples:
            groups[sample.group].append(sample)
        known = list(groups.values())
        picks = rng.integers(0, len(known), len(known)).tolist()
        samples = tuple(replace(s, group=group) for group, pick in enumerate(picks) for s in known[pick])
        drawn.append(WaveWork(samples, tuple(wave.valid[pick] for pick in picks)))
    return drawn


def thinned(wave: WaveWork, step: int) -> WaveWork:
    """Returns the wave with every step-th group."""
    if step == 1:
        return wave
    samples = tuple(sample for sample in wave.samples if sample.group % step == 0)
    return WaveWork(samples, wave.valid[::step])


def sequences_of(iteration: IterationTelemetry) -> int:
    """Returns the number of turns and judgements of an iteration."""
    return sum(len(sample.turns) + len(sample.judge) for wave in iteration.waves for sample in wave.samples)


# -- before anything is known --------------------------------------------------------------------------------------------


def assumed_sequences(setting: Setting) -> int:
    """Returns the approximate number of turns and judgements of the assumed work."""
    turns = (1 + ASSUMED_TURNS) // 2 if setting.tool_tokens else 1
    return setting.prompts * ASSUMED_GROUP * (turns + setting.judgements)


def assumed_work(setting: Setting, groups: int, response: float, judgement: float) -> list[WaveWork]:
    """Returns work with log-normal lengths that have the given medians, and tool calls if the setting has tools."""
    rng = np.random.Generator(np.random.PCG64(0))
    shape = (groups, ASSUMED_GROUP)
    shared = rng.standard_normal((groups, 1))
    own = rng.standard_normal(shape)
    x = math.sqrt(ASSUMED_RHO) * shared + math.sqrt(1.0 - ASSUMED_RHO) * own
    responses = _lengths(response, ASSUMED_SIGMA, x)
    judge = _lengths(judgement, ASSUMED_JUDGE_SIGMA, rng.standard_normal((*shape, setting.judgements)))
    turns = rng.integers(1, (ASSUMED_TURNS if setting.tool_tokens else 1) + 1, shape)
    waits = ASSUMED_WAIT_S * rng.standard_exponential((*shape, ASSUMED_TURNS))
    samples = tuple(
        SampleWork(
            group=group, first=sample == 0, prompt=ASSUMED_PROMPT,
            turns=split_turns(int(responses[group, sample]), int(turns[group, sample])),
            waits=tuple(waits[group, sample].tolist()[: turns[group, sample] - 1]),
            judge=tuple(judge[group, sample].tolist()),
        )
        for group in range(groups)
        for sample in range(ASSUMED_GROUP)
    )  # fmt: skip
    return [WaveWork(samples, (True,) * groups)]


def _lengths(median: float, sigma: float, x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.maximum(16, median * np.exp(sigma * x)).astype(np.int64)
