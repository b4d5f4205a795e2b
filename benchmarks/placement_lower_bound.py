"""Computes bounds that no policy can beat: the least time of a wave, and of iterations whose phases overlap.

Consumes waves' work and the pool on which they run; produces seconds. The argument for a wave: every sample's own chain at
batch 1 bounds the time from below. Sharing decode steps costs a sample time, so the remaining time bounds the part of
an engine's fixed step time that it can share. The resulting work must fit the pool. Every part of the work decreases
as the time grows, so bisection finds the least feasible time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.placement.seen import Setting
from yatt_core.placement.simulation.campaign import setting_of
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.placement.workload import EngineConstants, Scenario

BISECTIONS = 200
RELATIVE = 1e-12

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Decoding:
    """The sequences to decode, flat.

    tokens: number of tokens of each sequence.
    own: seconds at speed 1 of each sequence, in addition to the engine's fixed step time.
    """

    owner: npt.NDArray[np.int64]
    tokens: Array
    own: Array
    cost_of_company: float
    constants: EngineConstants

    def work(self, slack: Array) -> float:
        """Returns the seconds of work at speed 1 if each sample has `slack` seconds to spare for sharing steps with others."""
        room = 1.0 + slack[self.owner] / (self.cost_of_company * self.tokens)
        shared = np.minimum(self.constants.max_concurrent, np.maximum(room, 1.0))
        return float((self.own + self.tokens * self.constants.base_s / shared).sum())


def wave_lower_bound(setting: Setting, wave: WaveWork) -> float:
    """Returns the minimum seconds of a wave."""
    speeds = np.sort(np.array(setting.speeds))
    fastest = float(speeds[-1])
    total = float(speeds.sum())
    parts = [_chain(setting, sample) for sample in wave.samples]
    rollout_chain, judge_chain, waits = (
        np.array([part[key] for part in parts]) for key in ("rollout", "judge", "waits")
    )
    rollouts, judgements = _decoding(setting, wave)
    rollout_prefill = sum(part["rollout_prefill"] for part in parts)
    judge_prefill = sum(part["judge_prefill"] for part in parts)
    chain = rollout_chain + judge_chain
    first = float((rollout_chain / fastest + waits).min())
    shortest = float(judge_chain.min()) / fastest

    def feasible(seconds: float) -> bool:
        slack = (seconds - waits) * fastest - chain
        if (slack < 0).any():
            return False
        rolling = rollout_prefill + rollouts.work(slack)
        judging = judge_prefill + judgements.work(slack)
        away = min(setting.switch.role_s, first)
        ability = np.cumsum(speeds[::-1]) * max(seconds - away, 0.0)
        judges = int(np.searchsorted(ability, judging)) + 1
        loss = away * float(speeds[:judges].sum())
        return bool(
            rolling + judging + loss <= total * seconds
            and rolling <= total * (seconds - shortest)
            and judging <= total * (seconds - first)
        )

    low = float((chain / fastest + waits).max())
    high = 1.0
    while not feasible(high):
        high *= 2.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
        if high - low <= RELATIVE * high:
            break
    return high


def _rollout_decode(setting: Setting, sample: SampleWork) -> tuple[float, int]:
    """Returns the seconds of all turns at batch 1 and speed 1, and the tokens that the judge reads.

    The judge reads the prompt, the turns and the tools' outputs.
    """
    seconds = 0.0
    context = sample.prompt
    for number, tokens in enumerate(sample.turns):
        context += setting.tool_tokens if number else 0
        seconds += alone(setting.rollout, tokens, context)
        context += tokens
    return seconds, context


def _chain(setting: Setting, sample: SampleWork) -> dict[str, float]:
    """Returns a sample's seconds at batch 1 and speed 1.

    They are those of rollout with its prefills, of the judge with its longest judgement, of the waits, and of the two
    prefills alone.
    """
    rollout = setting.rollout
    judge = setting.judge
    decode, read = _rollout_decode(setting, sample)
    first = 0 if rollout.prefix_cache and not sample.first else sample.prompt
    rollout_prefill = (first + (len(sample.turns) - 1) * setting.tool_tokens) * rollout.per_prompt_token_s
    asked = read if judge.prefix_cache else (read + judge.template_tokens) * len(sample.judge)
    judge_prefill = asked * judge.per_prompt_token_s
    longest = alone(judge, max(sample.judge), read + judge.template_tokens)
    return {
        "rollout": rollout_prefill + decode, "judge": judge_prefill + longest, "waits": sum(sample.waits),
        "rollout_prefill": rollout_prefill, "judge_prefill": judge_prefill,
    }  # fmt: skip


def alone(constants: EngineConstants, tokens: int, context: int) -> float:
    """Returns the seconds of `tokens` decode steps at batch 1 and speed 1, starting at this context."""
    return (
        tokens * (constants.base_s + own_step(constants, context))
        + constants.per_context_token_s * tokens * (tokens - 1) / 2
    )


def own_step(constants: EngineConstants, context: int) -> float:
    """Returns the seconds that a sequence adds to a step."""
    return constants.per_sequence_s + constants.per_context_token_s * context


def _decoding(setting: Setting, wave: WaveWork) -> tuple[_Decoding, _Decoding]:
    """Returns all rollouts of a wave, and all judgements."""
    rollouts: list[tuple[int, int, float]] = []
    judgements: list[tuple[int, int, float]] = []
    contexts: list[int] = []
    for index, sample in enumerate(wave.samples):
        decode, read = _rollout_decode(setting, sample)
        rollouts.append((index, sample.response, decode - sample.response * setting.rollout.base_s))
        contexts.append(read + setting.judge.template_tokens)
        for tokens in sample.judge:
            own = alone(setting.judge, tokens, contexts[-1]) - tokens * setting.judge.base_s
            judgements.append((index, tokens, own))
    shortest = min(sample.prompt for sample in wave.samples)
    return _flat(rollouts, setting.rollout, shortest), _flat(judgements, setting.judge, min(contexts))


def _flat(rows: list[tuple[int, int, float]], constants: EngineConstants, least: int) -> _Decoding:
    owner, tokens, own = (np.array(column) for column in zip(*rows, strict=True))
    return _Decoding(
        owner=owner,
        tokens=tokens.astype(np.float64),
        own=own,
        cost_of_company=own_step(constants, least),
        constants=constants,
    )


def overlapped_lower_bound(workload: Scenario, waves: Sequence[WaveWork]) -> float:
    """Returns the least mean seconds between two commits of iterations like this one, if everything may overlap.

    Engines are always full and never switch, no token is read twice, and all devices always work: for the engines, or
    for the trainer, whose time does not depend on a device's speed and which therefore has the slowest ones.
    """
    setting = setting_of(workload)
    work = sum(full_work(setting, wave) for wave in waves)
    tokens = sum(sample.prompt + sample.response for wave in waves for sample in wave.samples)
    learning = workload.training.device_seconds_per_token * tokens / workload.cluster.devices_per_instance
    speeds = np.sort(np.array(setting.speeds))

    def feasible(seconds: float) -> bool:
        learnt = np.clip(learning / seconds - np.arange(len(speeds)), 0.0, 1.0)
        return bool(learning <= seconds * len(speeds) and (speeds * (1.0 - learnt)).sum() * seconds >= work)

    high = (work + learning) / float(speeds[0])
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
        if high - low <= RELATIVE * high:
            break
    return high


def full_work(setting: Setting, wave: WaveWork) -> float:
    """Returns the engines' seconds for a wave at speed 1, with each decode step shared by as many as there are places."""
    prefill = sum(
        part["rollout_prefill"] + part["judge_prefill"] for part in (_chain(setting, s) for s in wave.samples)
    )
    decodings = _decoding(setting, wave)
    return prefill + sum(
        float((each.own + each.tokens * each.constants.base_s / each.constants.max_concurrent).sum())
        for each in decodings
    )
