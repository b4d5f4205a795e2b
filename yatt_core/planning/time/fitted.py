"""Constants of the cost model, fitted to the times that the engines and the trainer of a recorded run took.

Consumes the work, seconds and lengths of decode batches and iterations; produces `FittedConstants`, which replaces the
constants derived from the cards. The seconds of a decode batch include its prefill, so a fitted engine has no separate
constant for prefill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev

from yatt_core.placement.actions import ROLLOUT
from yatt_core.placement.fitting import fitted
from yatt_core.placement.seen import IterationTelemetry, Setting, Usage
from yatt_core.placement.workload import EngineConstants, SwitchCosts
from yatt_core.planning.assumptions import Spread
from yatt_core.planning.time.times import TrainingTimes

LEAST_SPREAD = 0.05
"""Minimum relative spread of the iterations' tokens; below it, fixed and per-token seconds cannot be separated."""
LEAST_BATCHES = 8
LEAST_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class BatchWork:
    """The decode batches of a shard.

    steps: decode steps.
    sequence_steps: steps times sequences.
    context_steps: steps times tokens of context.
    seconds: seconds that the batches took.
    prompts, responses: lengths of its samples, in tokens.
    """

    steps: int
    sequence_steps: int
    context_steps: int
    seconds: float
    prompts: tuple[int, ...]
    responses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """The times of an iteration, in seconds.

    tokens: number of prompt and response tokens trained on.
    learning: time of prepare and learn together.
    checkpoint: time of the checkpoint; None if none was taken.
    rest: time in which neither engines nor trainer worked, such as the overhead of the flow and the controllers.
    """

    tokens: float
    learning: float
    sync: float
    checkpoint: float | None
    rest: float


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """The fitted constants.

    engine: None if too little was recorded.
    fixed_s: seconds per iteration in addition to those per token.
    token_device_s: device seconds, summed over the ranks, per token trained on; None if too little was recorded, in
        which case `fixed_s`, `sync_s` and `checkpoint_s` have no meaning.
    told: a readable description of what was and was not fitted.
    """

    engine: EngineConstants | None
    fixed_s: float
    token_device_s: float | None
    sync_s: float
    checkpoint_s: float | None
    prompt: Spread | None
    response: Spread | None
    told: tuple[str, ...]

    def rollout_constants(self, cards: EngineConstants) -> EngineConstants:
        """Returns the engine's constants, with the limits that the plan found."""
        if self.engine is None:
            return cards
        names = ("base_s", "per_sequence_s", "per_context_token_s", "per_prompt_token_s")
        return cards.model_copy(update={name: getattr(self.engine, name) for name in names})

    def training_times(self, cards: TrainingTimes, devices_for_each_rank: float) -> TrainingTimes:
        """Returns the trainer's times; those that were not recorded come from the cards.

        devices_for_each_rank: number of devices per rank in the plan.
        """
        if self.token_device_s is None:
            return cards
        learn_s = self.token_device_s * devices_for_each_rank
        found = replace(cards, prepare_s=0.0, learn_s=learn_s, fixed_s=self.fixed_s, sync_s=self.sync_s)
        return found if self.checkpoint_s is None else replace(found, checkpoint_s=self.checkpoint_s)


def fit(run: str, batches: Sequence[BatchWork], iterations: Sequence[IterationTimes], ranks: int) -> FittedConstants:
    """Fits the constants to the records of a run.

    ranks: ranks of its trainer, one per device.
    """
    told = []
    engine = None
    prompt = spread_of([length for batch in batches for length in batch.prompts])
    response = spread_of([length for batch in batches for length in batch.responses])
    if len(batches) >= LEAST_BATCHES:
        engine = _engine(batches)
        told.append(
            f"from {run}: a decode step takes {engine.base_s:.3g} s, {engine.per_sequence_s:.3g} s per sequence and "
            f"{engine.per_context_token_s:.3g} s per token of context (fitted to {len(batches)} shards, prefill included)"
        )
    else:
        told.append(
            f"{run} has telemetry of {len(batches)} shards, but {LEAST_BATCHES} are needed: engine times come from the cards"
        )
    if len(iterations) < LEAST_ITERATIONS:
        told.append(
            f"{run} has {len(iterations)} iterations, but {LEAST_ITERATIONS} are needed: training times come from the cards"
        )
        return FittedConstants(
            engine=engine,
            fixed_s=0.0,
            token_device_s=None,
            sync_s=0.0,
            checkpoint_s=None,
            prompt=prompt,
            response=response,
            told=tuple(told),
        )
    rest = median(row.rest for row in iterations)
    fixed, each = _line([(row.tokens, row.learning) for row in iterations])
    checkpoints = [row.checkpoint for row in iterations if row.checkpoint is not None]
    told.append(
        f"from {run}: an update takes {fixed:.3g} s plus {each * ranks:.3g} device seconds per token, the weight sync "
        f"{median(row.sync for row in iterations):.3g} s, the rest of an iteration {rest:.3g} s (fitted to "
        f"{len(iterations)} iterations)"
    )
    return FittedConstants(
        engine=engine,
        fixed_s=fixed + rest,
        token_device_s=each * ranks,
        sync_s=median(row.sync for row in iterations),
        checkpoint_s=median(checkpoints) if checkpoints else None,
        prompt=prompt,
        response=response,
        told=tuple(told),
    )


def spread_of(lengths: Sequence[int]) -> Spread | None:
    """Returns the log-normal with the median of the lengths and the deviation of their logarithms; None without any."""
    if not lengths:
        return None
    return Spread(float(median(lengths)), pstdev(math.log(max(1, length)) for length in lengths))


def _engine(batches: Sequence[BatchWork]) -> EngineConstants:
    """Fits an engine's constants with the same function as the placement does."""
    usage = tuple(
        Usage(
            instance=0,
            role=ROLLOUT,
            steps=row.steps,
            sequence_steps=row.sequence_steps,
            context_steps=row.context_steps,
            decode_s=row.seconds,
        )
        for row in batches
    )
    limits = EngineConstants(
        base_s=1.0, per_sequence_s=0.0, per_context_token_s=0.0, per_prompt_token_s=0.0, max_concurrent=1
    )
    setting = Setting(
        speeds=(1.0,),
        rollout=limits,
        judge=limits,
        switch=SwitchCosts(role_s=0.0, repartition_s=0.0, train_s=0.0),
        control_period_s=1.0,
    )
    found = fitted(
        setting, [IterationTelemetry(roles="R", waves=(), usage=usage, collect_s=0.0, judging_s=0.0)]
    ).rollout
    return found.model_copy(update={"per_prompt_token_s": 0.0})


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns intercept and slope of the least-squares line, neither negative.

    The line goes through the origin if the tokens hardly vary.
    """
    tokens = [x for x, _ in points]
    seconds = [y for _, y in points]
    ratio = sum(seconds) / sum(tokens)
    if pstdev(tokens) < LEAST_SPREAD * fmean(tokens):
        return 0.0, ratio
    centre = fmean(tokens)
    level = fmean(seconds)
    slope = sum((x - centre) * (y - level) for x, y in points) / sum((x - centre) ** 2 for x in tokens)
    fixed = level - slope * centre
    if slope <= 0.0:
        return level, 0.0
    return (fixed, slope) if fixed >= 0.0 else (0.0, ratio)
