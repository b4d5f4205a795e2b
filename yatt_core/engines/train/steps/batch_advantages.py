"""Rewards, advantages and reward moments of a whole batch, which every rank computes for itself; all ignore padding.

Tokens that do not count are not steps: tokens between counted ones, such as tool results, are part of the next counted
token's context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.advantages.base import RewardBatch
from yatt_core.algorithms.advantages.estimation import explained_variance
from yatt_core.algorithms.advantages.gae import GaeAdvantage
from yatt_core.algorithms.moments import RewardMoments, group_moments, merged
from yatt_core.engines.train.model.sequences import counted_lengths
from yatt_core.engines.train.steps.plan import seeded_permutation
from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.round_off import differences
from yatt_core.spec.run import RunSpec

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

LENGTH_PART = "length penalty"
"""Name of the length penalty among a batch's reward parts; no part of a spec has a space in its name."""


@dataclass(frozen=True, slots=True)
class BatchAdvantages:
    """Advantages of a batch.

    samples: [N], the advantage of each sample, or the mean of its tokens'; 0 for padding.
    tokens: [T], 0 for tokens that do not count; None for an advantage of samples.
    returns: [T], what a critic learns, 0 for tokens that do not count; None without a critic.
    explained_variance: share of the returns' variance that the values explain; None without a critic.
    """

    samples: Float64
    tokens: Float32 | None = None
    returns: Float32 | None = None
    explained_variance: float | None = None


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Columns of tokens, [T], that advantages may depend on; None for those that there are not.

    penalties: subtracted from rewards, token by token.
    values: a critic's values.
    """

    penalties: Float64 | None = None
    values: Float32 | None = None


def shaped_batch(spec: RunSpec, batch: ExperienceBatch) -> ExperienceBatch:
    """Returns the batch with the length penalty in its rewards, and with truncated responses masked, as the spec says."""
    algorithm = spec.algorithm
    if (shaping := algorithm.length_penalty) is not None:
        penalty = shaping.penalties(counted_lengths(batch), spec.rollout.max_new_tokens)
        parts = {**batch.reward_parts, LENGTH_PART: -penalty}
        batch = replace(batch, rewards=differences(batch.rewards, penalty), reward_parts=parts)
    if algorithm.mask_truncated:
        kept = batch.loss_mask & ~np.repeat(batch.truncated, batch.response_lengths)
        batch = replace(batch, loss_mask=kept)
    return batch


def batch_advantages(
    spec: RunSpec,
    batch: ExperienceBatch,
    rewards: Float64,
    branch: int,
    iteration: int,
    columns: TokenValues = TokenValues(),
) -> BatchAdvantages:
    """Returns the advantages of samples or tokens.

    rewards: [N], the batch's rewards, possibly scaled, and reduced by a KL penalty unless `columns` has it.

    Rewards of tokens (`rewards.critique`) take the place of those of samples, as in CAPO (arXiv 2508.02298). Raises
    `DataError` if the experience lacks them.
    """
    method = spec.algorithm.advantage
    learned = batch.learned
    samples = np.zeros(len(batch))
    by_token = spec.advantages_of_tokens
    if not (batch.loss_mask if by_token else learned).any():
        nothing = np.zeros(len(batch.response_tokens), dtype=np.float32)
        return BatchAdvantages(samples, nothing, nothing, 0.0) if by_token else BatchAdvantages(samples)
    credited = spec.rewards.critique is not None
    seen = _credited_batch(spec, batch, columns) if credited else _reward_batch(spec, batch, rewards, columns)
    found = method.advantages(seen)
    if spec.algorithm.permute_advantages:
        found = found[seeded_permutation(len(found), "permute_advantages", spec.seed, branch, iteration)]
    if not by_token:
        samples[learned] = found
        return BatchAdvantages(samples)
    lengths = counted_lengths(batch)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    samples = np.diff(np.concatenate(([0.0], np.cumsum(found)))[ends]) / np.maximum(lengths, 1)
    tokens = _spread(found, batch)
    if not isinstance(method, GaeAdvantage) or seen.values is None:
        return BatchAdvantages(samples, tokens)
    returns = method.estimates(seen) + seen.values
    return BatchAdvantages(samples, tokens, _spread(returns, batch), explained_variance(returns, seen.values))


def moments_after(before: RewardMoments, batch: ExperienceBatch) -> RewardMoments:
    """Returns the moments of all rewards learned from so far, including a batch's."""
    if not batch.learned.any():
        return before
    return merged(before, group_moments(batch.rewards[batch.learned], _learned_sizes(batch)))


def _reward_batch(spec: RunSpec, batch: ExperienceBatch, rewards: Float64, columns: TokenValues) -> RewardBatch:
    """Returns what an advantage sees: samples that are learned from, and their counted tokens."""
    learned = batch.learned
    counted = np.flatnonzero(batch.loss_mask)
    weights = {part.name: part.weight for part in spec.rewards.parts}
    parts = {name: (weights.get(name, 1.0), values[learned]) for name, values in batch.reward_parts.items()}
    if rewards is not batch.rewards:
        parts["change of the total"] = (1.0, (rewards - batch.rewards)[learned])
    return RewardBatch(
        rewards=rewards[learned],
        sizes=_learned_sizes(batch),
        lengths=counted_lengths(batch)[learned],
        epsilon=spec.algorithm.epsilon,
        penalties=None if columns.penalties is None else columns.penalties[counted],
        values=None if columns.values is None else columns.values[counted].astype(np.float64),
        parts=parts,
    )


def _credited_batch(spec: RunSpec, batch: ExperienceBatch, columns: TokenValues) -> RewardBatch:
    """Returns what an advantage sees if tokens have rewards of their own: each counted token as if it were a response.

    Raises `DataError` for an experience without such rewards.
    """
    if batch.token_rewards is None:
        raise DataError("experience: has no token_rewards, which rewards.critique needs; it was collected without one")
    rewards = batch.token_rewards[batch.loss_mask].astype(np.float64)
    if columns.penalties is not None:
        rewards -= columns.penalties[batch.loss_mask]
    ends = np.concatenate(([0], np.cumsum(counted_lengths(batch))))
    sizes = np.diff(ends[batch.group_offsets])
    return RewardBatch(rewards, sizes[sizes > 0], np.ones(len(rewards), dtype=np.int64), spec.algorithm.epsilon)


def _learned_sizes(batch: ExperienceBatch) -> Int64:
    """Returns the number of samples of each group that is not padding."""
    bounds = batch.group_offsets
    sizes: Int64 = np.diff(bounds)[batch.learned[bounds[:-1]]]
    return sizes


def _spread(counted: Float64, batch: ExperienceBatch) -> Float32:
    """Places the values of the counted tokens among all tokens, [T]."""
    column = np.zeros(len(batch.response_tokens), dtype=np.float32)
    column[batch.loss_mask] = counted
    return column
