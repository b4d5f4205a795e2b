"""The likeliest tokens of teachers at the policy's positions, and their log-probabilities.

Consumes the passes of an iteration's teachers and a batch; produces lists of equal length. Several teachers pass twice: the
first time each names its own likeliest tokens, the second time each gives its probabilities of all that were named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from yatt_core.algorithms.distillation import (
    Float32,
    Int32,
    LikelyTokens,
    candidates_of,
    likeliest,
    mixed_likely_tokens,
    with_tail,
)
from yatt_core.engines.train.model.forward import MicroBatch, Reader, assemble
from yatt_core.engines.train.model.head_values import Numbers
from yatt_core.engines.train.model.passes import TokenPasses
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plan import StepPlan
from yatt_core.errors import ConfigurationError
from yatt_core.experience.batch import ExperienceBatch


@dataclass(frozen=True, slots=True)
class TeacherReading:
    """What is read from teachers.

    share: the plan of the batch's samples over the ranks.
    count: number of likeliest tokens at each position.
    below: tokens from this one on are unknown to the policy.
    """

    batch: ExperienceBatch
    share: StepPlan
    collective: Collective
    count: int
    below: int


def likely_tokens(teachers: Sequence[tuple[TokenPasses, float]], reading: TeacherReading) -> LikelyTokens:
    """Returns the likeliest tokens at each of the batch's positions, 0 where this rank has none that counts.

    teachers: passes of each teacher, and its weight in the mixture.

    Raises `ConfigurationError` if a distribution has fewer tokens than asked for.
    """
    found = [_own_likeliest(passes, reading) for passes, _ in teachers]
    if len(found) == 1:
        return found[0]
    candidates = candidates_of([one.tokens for one in found])
    log_probs = [_at(passes, reading, candidates) for passes, _ in teachers]
    return mixed_likely_tokens(candidates, log_probs, [weight for _, weight in teachers], reading.count)


def _own_likeliest(passes: TokenPasses, reading: TeacherReading) -> LikelyTokens:
    count = reading.count
    known = min(reading.below, passes.vocabulary)
    if count > known:
        raise ConfigurationError(
            f"algorithm.distillation.top_k: {count} is more than the {known} tokens that teacher and policy have"
        )

    def read(_: MicroBatch, distribution: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens, log_probs = likeliest(distribution, count, reading.below)
        return tokens.int(), log_probs

    positions = len(reading.batch.response_tokens)
    found = LikelyTokens(np.zeros((positions, count), np.int32), np.zeros((positions, count + 1), np.float32))
    for micro_batch, (tokens, log_probs) in _read(passes, reading, read):
        found.tokens[micro_batch.positions] = tokens
        found.log_probs[micro_batch.positions] = log_probs
    return found


def _at(passes: TokenPasses, reading: TeacherReading, candidates: Int32) -> Float32:
    """Returns a teacher's log-probabilities of candidates, [T, n], and of all other tokens: [T, n + 1]."""

    def read(part: MicroBatch, distribution: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens = torch.from_numpy(candidates[part.positions].astype(np.int64)).to(distribution.device)
        return (with_tail(distribution, tokens),)

    found = np.zeros((len(candidates), candidates.shape[1] + 1), np.float32)
    for micro_batch, (log_probs,) in _read(passes, reading, read):
        found[micro_batch.positions] = log_probs
    return found


def _read(
    passes: TokenPasses, reading: TeacherReading, reader: Reader
) -> Iterator[tuple[MicroBatch, tuple[Numbers, ...]]]:
    """Yields what is read of each of this rank's micro-batches; nothing on ranks that know no distributions."""
    indices = reading.share.parts[reading.collective.rank]
    micro_batches = [assemble(reading.batch, samples, reading.share.packed) for samples in indices]
    return zip(micro_batches, passes.read(micro_batches, reader), strict=False)
