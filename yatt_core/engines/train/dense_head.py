"""The head of a dense model: log-probabilities and entropies of counted tokens, and the gradient of a loss on them.

Works through chunks of tokens, so that logits are held of one chunk alone, and computes their gradient where they are, from the
loss's derivative by log-probability and entropy: nothing of the vocabulary's size is kept for a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

CHUNK_LOGITS = 2**22
"""Logits of a chunk, at the most where it has more tokens than these: large products run faster, up to what caches hold."""
FEWEST, MOST = 64, 1024
LEAST_BY_MASS = -60.0
"""Log-probabilities below are not the logarithm of a mass, which nears what float32 can hold."""

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
    """Logits over the temperature and their distribution in float32, [n, vocabulary]; log-probabilities, entropies [n]."""

    logits: torch.Tensor
    probabilities: torch.Tensor
    log_probs: torch.Tensor
    log_total: torch.Tensor
    """Logarithm of the sum of exponentials of the logits, [n]."""
    entropies: torch.Tensor


def score_tokens(head: Head, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the targets, [T]. states: [T, width] behind the last norm."""
    parts = [_chunk(head, states[part], targets[part]).log_probs for part in _chunks(head, len(targets))]
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
    for part in _chunks(head, len(targets)):
        chunk = _chunk(head, states[part], targets[part])
        of_logits = _by_logits(head, chunk, targets[part], *_by_values(chunk, part, loss)).to(states.dtype)
        torch.mm(of_logits, head.weight, out=of_states[part])
        if states.dtype == of_weight.dtype:
            of_weight.addmm_(of_logits.t(), states[part])
        else:
            of_weight.add_(torch.mm(of_logits.t(), states[part]).float())
    return of_states


def _chunks(head: Head, count: int) -> Iterator[slice]:
    size = min(max(CHUNK_LOGITS // len(head.weight), FEWEST), MOST)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _chunk(head: Head, states: torch.Tensor, targets: torch.Tensor) -> _Chunk:
    logits = torch.mm(states, head.weight.t()).float()
    if head.temperature != 1.0:
        logits.div_(head.temperature)
    probabilities = torch.softmax(logits, dim=-1)
    log_probs = probabilities.gather(1, targets[:, None]).log_()[:, 0]
    if len(least := (log_probs < LEAST_BY_MASS).nonzero()[:, 0]):
        exact = torch.log_softmax(logits[least], dim=-1)
        log_probs[least] = exact.gather(1, targets[least, None])[:, 0]
    log_total = logits.gather(1, targets[:, None])[:, 0] - log_probs
    entropies = log_probs.new_empty(0)
    if head.entropies:
        entropies = log_total - torch.linalg.vecdot(probabilities, logits)
    return _Chunk(logits, probabilities, log_probs, log_total, entropies)


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
    if by_entropy is None:
        result = chunk.probabilities.mul_(-by_log_prob)
    else:
        by_entropy = by_entropy[:, None] / head.temperature
        surprise = chunk.logits.add_((chunk.entropies.detach() - chunk.log_total)[:, None])
        result = surprise.mul_(-by_entropy).sub_(by_log_prob).mul_(chunk.probabilities)
    return result.scatter_add_(1, targets[:, None], by_log_prob)
