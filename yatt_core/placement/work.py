"""The samples of a simulated wave, drawn as the benchmarks' cost model specifies, whatever the policy and machine.

Consumes a workload, an iteration and a wave; produces samples in order of submission, group by group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.placement.workload import LengthDistribution, Scenario, value_at

EXTRA_WAVES = 3
WORST_RATIO = 10.0
KEPT = 0.9
SURPLUS = 1.2


@dataclass(frozen=True, slots=True)
class SampleWork:
    """The work of one sample.

    turns: response tokens of each turn.
    waits: seconds of the tool calls between the turns.
    judge: tokens of each judgement, 0 for a reward model, which writes none; empty if the sample's judges failed.
    read: number of tokens of the sample that the judge reads; None if it reads prompt, turns and tool outputs.
    """

    group: int
    first: bool
    prompt: int
    turns: tuple[int, ...]
    waits: tuple[float, ...]
    judge: tuple[int, ...]
    read: int | None = None

    @property
    def response(self) -> int:
        """Response tokens of all turns."""
        return sum(self.turns)


@dataclass(frozen=True, slots=True)
class WaveWork:
    """The work of one wave.

    samples: the samples, group by group.
    valid: for each group, whether it counts towards the quota.
    """

    samples: tuple[SampleWork, ...]
    valid: tuple[bool, ...]


def draw_wave(workload: Scenario, iteration: int, wave: int, groups: int) -> WaveWork:
    """Draws a wave's samples; the cost model fixes the order of the draws."""
    spec = workload.samples
    rng = np.random.Generator(np.random.PCG64([workload.seed, iteration, wave]))
    shape = (groups, spec.group)
    prompts = _lengths(spec.prompt, iteration, rng.standard_normal(groups))
    shared = rng.standard_normal(groups)
    own = rng.standard_normal(shape)
    rho = spec.response.rho
    responses = _lengths(spec.response, iteration, math.sqrt(rho) * shared[:, None] + math.sqrt(1.0 - rho) * own)
    judge = _lengths(spec.judge, iteration, rng.standard_normal((*shape, spec.judgements)))
    valid = rng.random(groups) < value_at(spec.validity, iteration)
    turns = np.ones(shape, np.int64)
    waits = np.zeros((*shape, 0))
    if spec.tools is not None:
        turns = np.minimum(1 + np.floor(rng.random(shape) * spec.tools.max_turns).astype(np.int64), responses)
        waits = spec.tools.mean_wait_s * rng.standard_exponential((*shape, spec.tools.max_turns - 1))
    samples = [
        SampleWork(
            group=group, first=sample == 0, prompt=prompt,
            turns=split_turns(int(responses[group, sample]), int(turns[group, sample])),
            waits=tuple(waits[group, sample].tolist()[: turns[group, sample] - 1]),
            judge=tuple(judge[group, sample].tolist()),
        )
        for group, prompt in enumerate(prompts.tolist())
        for sample in range(spec.group)
    ]  # fmt: skip
    return WaveWork(tuple(samples), tuple(valid.tolist()))


def split_turns(tokens: int, turns: int) -> tuple[int, ...]:
    """Splits tokens into equal turns; the last one gets the remainder."""
    each = tokens // turns
    return (*[each] * (turns - 1), tokens - each * (turns - 1))


def _lengths(spec: LengthDistribution, iteration: int, x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    median = value_at(spec.median, iteration)
    sigma = value_at(spec.sigma, iteration)
    return np.clip(np.rint(median * np.exp(sigma * x)), spec.min, spec.max).astype(np.int64)


class Quota:
    """The number of groups in each wave of an iteration; its running average persists for the whole run."""

    def __init__(self, workload: Scenario) -> None:
        self._target = workload.samples.prompts
        self._dynamic = workload.samples.dynamic_sampling
        self._average = 1.0
        self._total = self._valid = self._extra = 0

    def first(self) -> int:
        """Returns the number of groups in an iteration's first wave."""
        self._total = self._valid = self._extra = 0
        return self._target

    def after(self, valid: Sequence[bool]) -> int:
        """Returns the number of groups in the next wave after one has been judged; 0 if the iteration ends.

        The last wave allowed does not update the average.
        """
        if not self._dynamic or self._extra == EXTRA_WAVES:
            return 0
        self._total += len(valid)
        self._valid += sum(valid)
        ratio = min(self._total / self._valid, WORST_RATIO) if self._valid else WORST_RATIO
        self._average = KEPT * self._average + (1.0 - KEPT) * ratio
        if self._valid >= self._target:
            return 0
        self._extra += 1
        return math.ceil((self._target - self._valid) * self._average * SURPLUS)
