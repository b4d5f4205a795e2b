"""The head of a dense model: log-probabilities and entropies of counted tokens, and the gradient of a loss on them.

Works through chunks of tokens, so that logits are held of one chunk alone, and computes their gradient where they are, from the
loss's derivative by log-probability and entropy: nothing of the vocabulary's size is kept for a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

CHUNK = 256

ChunkLoss = Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor]
"""(which tokens, their log-probabilities, their entropies or an empty tensor) -> their share of the loss, a scalar."""


@dataclass(frozen=True, slots=True)
class Head:
    """weight: [vocabulary, width]. temperature: that logits are divided by. entropies: whether they are computed."""

    weight: torch.Tensor
    temperature: float
    entropies: bool = False


@dataclass(slots=True)
class _Chunk:
    """Shifted logits, exp of them, its sum [n, 1], and log-probabilities and entropies [n]."""

    shifted: torch.Tensor
    masses: torch.Tensor
    total: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor


def score_tokens(head: Head, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the targets, [T]. states: [T, width] behind the last norm."""
    parts = [
        _chunk(head, states[start : start + CHUNK], targets[start : start + CHUNK]).log_probs
        for start in range(0, len(targets), CHUNK)
    ]
    return torch.cat([states.new_empty(0, dtype=torch.float32), *parts])


def backward_tokens(
    head: Head,
    states: torch.Tensor,
    targets: torch.Tensor,
    loss: ChunkLoss,
    of_weight: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the loss by the states, [T, width]; that by the weight is added to `of_weight` (float32)."""
    of_states = torch.empty_like(states)
    for start in range(0, len(targets), CHUNK):
        part = slice(start, min(start + CHUNK, len(targets)))
        chunk = _chunk(head, states[part], targets[part])
        of_logits = _by_logits(head, chunk, targets[part], *_by_values(chunk, part, loss)).to(states.dtype)
        torch.mm(of_logits, head.weight, out=of_states[part])
        if states.dtype == of_weight.dtype:
            of_weight.addmm_(of_logits.t(), states[part])
        else:
            of_weight.add_(torch.mm(of_logits.t(), states[part]))
    return of_states


def _chunk(head: Head, states: torch.Tensor, targets: torch.Tensor) -> _Chunk:
    logits = torch.mm(states, head.weight.t()).float()
    if head.temperature != 1.0:
        logits.div_(head.temperature)
    shifted = logits.sub_(logits.amax(1, keepdim=True))
    masses = shifted.exp()
    total = masses.sum(1, keepdim=True)
    log_total = total.log()
    log_probs = (shifted.gather(1, targets[:, None]) - log_total)[:, 0]
    entropies = log_probs.new_empty(0)
    if head.entropies:
        entropies = log_total[:, 0] - torch.linalg.vecdot(masses, shifted) / total[:, 0]
    return _Chunk(shifted, masses, total, log_probs, entropies)


def _by_values(chunk: _Chunk, part: slice, loss: ChunkLoss) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss's derivatives by log-probability and entropy, [n]; none where it does not depend on the entropy."""
    with torch.enable_grad():
        log_probs, entropies = chunk.log_probs.requires_grad_(), chunk.entropies.requires_grad_()
        value = loss(part, log_probs, entropies)
        found = torch.autograd.grad(value, (log_probs, entropies), allow_unused=True)
    assert found[0] is not None
    return found[0], found[1]


def _by_logits(
    head: Head, chunk: _Chunk, targets: torch.Tensor, by_log_prob: torch.Tensor, by_entropy: torch.Tensor | None
) -> torch.Tensor:
    """The loss's derivative by the logits, [n, vocabulary]; overwrites the chunk.

    With p the distribution, d log p_t / d logit_v = [v = t] - p_v, and d H / d logit_v = -p_v (log p_v + H).
    """
    by_log_prob = by_log_prob[:, None] / head.temperature
    shares = -(by_log_prob / chunk.total)
    if by_entropy is None:
        result = chunk.masses.mul_(shares)
    else:
        by_entropy = by_entropy[:, None] / head.temperature
        surprise = chunk.shifted.add_(chunk.entropies.detach()[:, None] - chunk.total.log())
        result = surprise.mul_(-(by_entropy / chunk.total)).add_(shares).mul_(chunk.masses)
    return result.scatter_add_(1, targets[:, None], by_log_prob)
