"""Estimates over the tokens of responses: generalised advantages (arXiv 1506.02438), rewards to go; all float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def generalised_advantages(
    rewards: Float64, values: Float64, lengths: Int64, gamma: float, gae_lambda: float
) -> Float64:
    """Computes A_t = delta_t + gamma gae_lambda A_{t+1}, with delta_t = r_t + gamma V_{t+1} - V_t.

    Both A and V are 0 past the end of a response. Returns [T]; the tokens' returns are advantages + values.

    rewards, values: [T], the tokens of N responses, concatenated; V_t is the value before token t is chosen.
    lengths: [N], sums to T; a response may have no tokens.
    """
    longest = int(lengths.max(initial=0))
    inside = np.arange(longest) < lengths[:, None]
    reward = np.zeros(inside.shape)
    value = np.zeros((len(lengths), longest + 1))
    reward[inside] = rewards
    value[:, :longest][inside] = values
    delta = reward + gamma * value[:, 1:] - value[:, :longest]
    found = np.zeros(inside.shape)
    following = np.zeros(len(lengths))
    for place in reversed(range(longest)):
        # A response that has already ended contributes nothing: its rewards and values there are 0, and so is delta.
        following = delta[:, place] + gamma * gae_lambda * following
        found[:, place] = following
    advantages: Float64 = found[inside]
    return advantages


def whitened(advantages: Float64, epsilon: float) -> Float64:
    """Returns (A - mean) / (std + epsilon) over all tokens, std over n - 1; 0 for a single token."""
    if len(advantages) < 2:
        return np.zeros_like(advantages)
    normal: Float64 = (advantages - advantages.mean()) / (advantages.std(ddof=1) + epsilon)
    return normal


def explained_variance(returns: Float64, values: Float64) -> float:
    """Returns 1 - Var(returns - values) / Var(returns); 0 if the returns do not vary. Both are [T]."""
    spread = float(returns.var()) if len(returns) else 0.0
    return 1.0 - float((returns - values).var()) / spread if spread > 0.0 else 0.0


def rewards_to_go(rewards: Float64, penalties: Float64 | None, lengths: Int64) -> Float64:
    """Returns for each token its response's reward minus the penalties from this token to the response's end, [T].

    rewards: [N].
    penalties: [T]; None for none.
    lengths: [N], sums to T.
    """
    found = np.repeat(rewards, lengths)
    if penalties is None:
        return found
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    running = np.concatenate(([0.0], np.cumsum(penalties)))
    ends = begins + np.repeat(lengths, lengths)
    remaining: Float64 = found - (running[ends] - running[:-1])
    return remaining
