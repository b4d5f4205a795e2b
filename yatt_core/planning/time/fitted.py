"""Constants of the cost model from a run that was recorded: what its engines and its trainer really took.

Consumes the work, the seconds and the lengths of decode batches and of iterations; produces `Fitted`, which stands in for the
cards' constants. The seconds of a decode batch hold its prefill too, so that prefill is no constant of its own then.
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
"""Of the iterations' tokens, relative: below it fixed seconds and those by token cannot be told apart."""
LEAST_BATCHES, LEAST_ITERATIONS = 8, 3


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A shard's decode batches: steps, steps times sequences, steps times tokens of context; seconds that they took.

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
    """tokens: of prompts and responses learnt from. Seconds: of prepare and learn, of sync, of a checkpoint if one was taken.

    rest: seconds in which neither engines nor trainer worked: the flow's own, and the controllers'.
    """

    tokens: float
    learning: float
    sync: float
    checkpoint: float | None
    rest: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was found. engine: None where too little was recorded. told: what was fitted and what not, in words.

    token_device_s: seconds of the ranks' devices for each token learnt from; None where too little was recorded, and fixed_s
    (of an iteration, besides), sync_s and checkpoint_s then say nothing.
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
        """The engine's, with the limits that the plan found."""
        if self.engine is None:
            return cards
        names = ("base_s", "per_sequence_s", "per_context_token_s", "per_prompt_token_s")
        return cards.model_copy(update={name: getattr(self.engine, name) for name in names})

    def training_times(self, cards: TrainingTimes, devices_for_each_rank: float) -> TrainingTimes:
        """The trainer's; what was not recorded is as the cards say. devices_for_each_rank: of the plan."""
        if self.token_device_s is None:
            return cards
        learn_s = self.token_device_s * devices_for_each_rank
        found = replace(cards, prepare_s=0.0, learn_s=learn_s, fixed_s=self.fixed_s, sync_s=self.sync_s)
        return found if self.checkpoint_s is None else replace(found, checkpoint_s=self.checkpoint_s)


def fit(run: str, batches: Sequence[BatchWork], iterations: Sequence[IterationTimes], ranks: int) -> Fitted:
    """From what was recorded of a run. ranks: of its trainer, each a device."""
    told = []
    engine = None
    prompt = spread_of([length for batch in batches for length in batch.prompts])
    response = spread_of([length for batch in batches for length in batch.responses])
    if len(batches) >= LEAST_BATCHES:
        engine = _engine(batches)
        told.append(
            f"from {run}: a decode step takes {engine.base_s:.3g} s, {engine.per_sequence_s:.3g} s a sequence and "
            f"{engine.per_context_token_s:.3g} s a token of context (fitted to {len(batches)} shards, prefill included)"
        )
    else:
        told.append(
            f"{run} has telemetry of {len(batches)} shards, {LEAST_BATCHES} are needed: engines are as the cards say"
        )
    if len(iterations) < LEAST_ITERATIONS:
        told.append(
            f"{run} has {len(iterations)} iterations, {LEAST_ITERATIONS} are needed: training is as the cards say"
        )
        return Fitted(engine, 0.0, None, 0.0, None, prompt, response, tuple(told))
    rest = median(row.rest for row in iterations)
    fixed, each = _line([(row.tokens, row.learning) for row in iterations])
    checkpoints = [row.checkpoint for row in iterations if row.checkpoint is not None]
    told.append(
        f"from {run}: an update takes {fixed:.3g} s and {each * ranks:.3g} device seconds a token, new weights "
        f"{median(row.sync for row in iterations):.3g} s on their way, all else of an iteration {rest:.3g} s (fitted to "
        f"{len(iterations)} iterations)"
    )
    return Fitted(
        engine,
        fixed + rest,
        each * ranks,
        median(row.sync for row in iterations),
        median(checkpoints) if checkpoints else None,
        prompt,
        response,
        tuple(told),
    )


def spread_of(lengths: Sequence[int]) -> Spread | None:
    """The log-normal with their median and the deviation of their logarithms."""
    if not lengths:
        return None
    return Spread(float(median(lengths)), pstdev(math.log(max(1, length)) for length in lengths))


def _engine(batches: Sequence[BatchWork]) -> EngineConstants:
    """By the placement's own fit."""
    usage = tuple(Usage(0, ROLLOUT, row.steps, row.sequence_steps, row.context_steps, row.seconds) for row in batches)
    limits = EngineConstants(
        base_s=1.0, per_sequence_s=0.0, per_context_token_s=0.0, per_prompt_token_s=0.0, max_concurrent=1
    )
    setting = Setting((1.0,), limits, limits, SwitchCosts(role_s=0.0, repartition_s=0.0, train_s=0.0), 1.0)
    found = fitted(setting, [IterationTelemetry("R", (), usage, 0.0, 0.0)]).rollout
    return found.model_copy(update={"per_prompt_token_s": 0.0})


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope, neither negative, of the least squares; through the origin where the points hardly spread."""
    tokens, seconds = [x for x, _ in points], [y for _, y in points]
    ratio = sum(seconds) / sum(tokens)
    if pstdev(tokens) < LEAST_SPREAD * fmean(tokens):
        return 0.0, ratio
    centre, level = fmean(tokens), fmean(seconds)
    slope = sum((x - centre) * (y - level) for x, y in points) / sum((x - centre) ** 2 for x in tokens)
    fixed = level - slope * centre
    if slope <= 0.0:
        return level, 0.0
    return (fixed, slope) if fixed >= 0.0 else (0.0, ratio)
