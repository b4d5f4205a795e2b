"""Advantages and returns of single tokens from a critic's values, over a whole batch; each rank computes all of them.

Consumes rewards of samples, and values and divergences of tokens. Tokens that do not count are not steps:
tokens between counted ones, such as tool results, are part of the next counted token's context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.gae import explained_variance, generalised_advantages, whitened
from yatt_core.engines.train.steps.learner import counted_lengths
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.sections.algorithm import PpoSpec

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """Advantages of tokens and samples.

    advantages, returns: [T], 0 for tokens that do not count.
    samples: [N], mean advantage of each sample's tokens.
    explained_variance: share of the returns' variance that the values explain.
    """

    advantages: Float32
    returns: Float32
    samples: Float64
    explained_variance: float


def token_advantages(
    spec: PpoSpec, batch: ExperienceBatch, rewards: Float64, values: Float32, divergence: Float64 | None
) -> TokenAdvantages:
    """Computes advantages and returns of tokens.

    rewards: [N], each assigned to its sample's last counted token.
    values: [T].
    divergence: [T], log(old / reference), whose multiple is subtracted token by token (arXiv 2203.02155); None
        unless the reward has a KL term.
    """
    counted, lengths = np.flatnonzero(batch.loss_mask), counted_lengths(batch)
    ends = np.cumsum(lengths)
    by_token = np.zeros(len(counted))
    by_token[ends[lengths > 0] - 1] = rewards[lengths > 0]
    if spec.kl is not None and divergence is not None:
        by_token -= spec.kl.coefficient * divergence[counted]
    known = values[counted].astype(np.float64)
    found = generalised_advantages(by_token, known, lengths, spec.gamma, spec.gae_lambda)
    returns = found + known
    if spec.normalise == "batch_std":
        found = whitened(found, spec.epsilon)
    sums = np.diff(np.concatenate(([0.0], np.cumsum(found)))[np.concatenate(([0], ends))])
    return TokenAdvantages(
        advantages=_spread(found, batch),
        returns=_spread(returns, batch),
        samples=sums / np.maximum(lengths, 1),
        explained_variance=explained_variance(returns, known),
    )


def _spread(counted: Float64, batch: ExperienceBatch) -> Float32:
    """Places the values of the counted tokens among all tokens, [T]."""
    column = np.zeros(len(batch.response_tokens), dtype=np.float32)
    column[batch.loss_mask] = counted
    return column
