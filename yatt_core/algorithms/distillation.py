"""On-policy distillation: mixes teachers; their log-probabilities of the policy's own tokens become part of advantages,
and those of their likeliest tokens a divergence of the policy's whole distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

NO_TOKEN = -1
"""In place of a token in a list that has fewer."""
NOTHING = -1e18
"""The log-probability of what has no mass; finite, so that 0 times it is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class LikelyTokens:
    """A distribution at each of T positions: its k likeliest tokens, and the rest of the vocabulary as one tail.

    tokens: [T, k] token ids.
    log_probs: [T, k + 1]; the last one is the logarithm of the tail's mass.
    """

    tokens: Int32
    log_probs: Float32


def mixed_log_probs(log_probs: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """Returns log sum_m w_m q_m of each token, where w are the weights divided by their sum.

    log_probs: [T] of each teacher m.
    """
    shares = np.log(np.array(weights) / sum(weights))
    parts = np.stack([found.astype(np.float64) for found in log_probs]) + shares[:, None]
    mixed: Float32 = np.logaddexp.reduce(parts, axis=0).astype(np.float32)
    return mixed


def taught_advantages(advantages: torch.Tensor, divergence: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Returns A - coefficient (log p_old - log q) per token, where p is the policy and q the teacher.

    divergence: log p_old - log q of the sampled token, without gradient; all inputs and the result have the same
        shape.

    In a given context, the gradient of KL(p || q) is E_p[(log p - log q) grad log p]: the policy gradient in
    which each token has the advantage log q - log p (the reverse KL on the student's samples of arXiv 2306.13649;
    the single-step part of arXiv 2306.08543).
    """
    return advantages - coefficient * divergence


def likeliest(log_distribution: torch.Tensor, count: int, below: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the k likeliest tokens of distributions, [n, k], and their log-probabilities with the tail's, [n, k + 1].

    log_distribution: [n, vocabulary], normalised.
    count: k, at most the number of tokens.
    below: tokens from this one on count as part of the tail; the student does not have them.
    """
    tokens = log_distribution[:, :below].topk(count, dim=-1).indices
    return tokens, with_tail(log_distribution, tokens)


def with_tail(log_distribution: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probabilities of tokens, and the logarithm of the mass of all others: [n, k + 1].

    log_distribution: [n, vocabulary], normalised.
    tokens: [n, k], different ones in each row; `NO_TOKEN` in place of some, but not of the first one.

    The tail is added up by itself: 1 minus the other probabilities would have the rounding error of 1.
    """
    known = tokens != NO_TOKEN
    tokens = torch.where(known, tokens, tokens[:, :1])
    listed = log_distribution.gather(1, tokens).masked_fill(~known, NOTHING)
    tail = log_distribution.scatter(1, tokens, NOTHING).logsumexp(1, keepdim=True)
    return torch.cat([listed, tail], dim=1)


def bucket_divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Returns the reverse KL divergence of distributions over k tokens and a tail, [n]: sum_b p_b (log p_b - log q_b).

    student, teacher: log p_b and log q_b, [n, k + 1], from `with_tail`; gradients flow to the student's.

    This is the reverse KL divergence on the student's samples (arXiv 2306.13649) with the tokens outside of the teacher's
    likeliest ones as one bucket (arXiv 2608.14728). Merging tokens never increases a divergence, so that it is at most
    that of the whole distributions, and equal to it if k is the size of the vocabulary.
    """
    return (student.exp() * (student - teacher)).sum(1)


def candidates_of(lists: Sequence[Int32]) -> Int32:
    """Returns the tokens of several lists at each position, [T, n], each of them once, then `NO_TOKEN`.

    lists: [T, k] of each teacher.
    """
    joined = np.sort(np.concatenate(lists, axis=1), axis=1)
    joined[:, 1:][joined[:, 1:] == joined[:, :-1]] = NO_TOKEN
    return np.take_along_axis(joined, np.argsort(joined == NO_TOKEN, axis=1, kind="stable"), axis=1)


def mixed_likely_tokens(
    candidates: Int32, log_probs: Sequence[Float32], weights: Sequence[float], count: int
) -> LikelyTokens:
    """Returns the k likeliest of some tokens under a mixture sum_m w_m q_m, where the weights are divided by their sum.

    candidates: [T, n], at least k different tokens at each position.
    log_probs: [T, n + 1] of each teacher m, as from `with_tail`.
    count: k; the other candidates become part of the tail.
    """
    flat = mixed_log_probs([found.ravel() for found in log_probs], weights)
    mixed = flat.reshape(candidates.shape[0], candidates.shape[1] + 1)
    order = np.argsort(-mixed[:, :-1], axis=1, kind="stable")
    kept = order[:, :count]
    dropped = order[:, count:]
    rest = np.concatenate([np.take_along_axis(mixed, dropped, 1), mixed[:, -1:]], axis=1).astype(np.float64)
    tail = np.logaddexp.reduce(rest, axis=1, keepdims=True).astype(np.float32)
    listed = np.take_along_axis(mixed, kept, 1)
    return LikelyTokens(np.take_along_axis(candidates, kept, 1), np.concatenate([listed, tail], axis=1))
