"""The head of a dense model: log-probabilities and entropies of counted tokens, and the gradient of a loss on them.

Works in chunks of tokens, so that only one chunk's logits exist at a time, and computes their gradient in
place: nothing of the vocabulary's size is kept for a backward pass. Matrix products take a whole chunk; the
operations between them take a strip at a time, which stays in a core's cache. The slopes of log-probabilities
are computed before the loss is known: the loss's derivative with respect to them is one number per token, which
multiplies the narrow side of the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from yatt_core.bfloat16.products import NATIVE, Products
from yatt_core.engines.train.model.chunk_sizes import GPU_LOGITS
from yatt_core.engines.train.model.chunks import ChunkLoss, slices
from yatt_core.engines.train.model.truncation import EXCLUDED, excluded
from yatt_core.wire.support import Support

CHUNK_LOGITS = 2**23
"""Target number of logits in a chunk of FEWEST to MOST tokens on a CPU; large products run faster."""
FEWEST, MOST = 64, 1024
STRIP_LOGITS, FEWEST_OF_STRIP = 2**19, 8
"""Target number of logits, and minimum number of tokens, of a strip."""
LEAST_BY_MASS = -60.0
"""Log-probabilities below this are not computed from a mass, which would approach the limit of float32."""

ValuesLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(log-probabilities, entropies or an empty tensor) of a chunk's tokens -> their part of the loss, a scalar."""
DistributionsLoss = Callable[[torch.Tensor], torch.Tensor]
"""Log-distributions of a chunk's tokens, [n, vocabulary] -> their part of the loss, a scalar."""
ChunkDistributionLoss = Callable[[slice, torch.Tensor], torch.Tensor]
"""(which tokens, their log-distributions) -> their part of the loss, a scalar."""


@dataclass(frozen=True, slots=True)
class Head:
    """An output head.

    weight: [vocabulary, width].
    temperature: divides the logits.
    entropies: whether to compute entropies.
    products: multiply states by the weight.
    """

    weight: torch.Tensor
    temperature: float
    entropies: bool = False
    products: Products = NATIVE


def measure_tokens(
    head: Head, states: torch.Tensor, targets: torch.Tensor, support: Support | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probabilities of the targets and the entropies of their distributions (or nothing), [T].

    states: [T, width], after the last norm.
    support: the tokens over which probabilities are renormalised; None for the whole vocabulary.
    """
    nothing = states.new_empty(0, dtype=torch.float32)
    parts = [(nothing, nothing)]
    for chunk in slices(chunk_rows(head), len(targets)):
        logits = head.products.matmul(states[chunk], head.weight.t())
        _restrict(logits, support, chunk)
        parts += [_values(head, logits[strip], targets[chunk][strip]) for strip in _strips(head, logits)]
    log_probs, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
    return log_probs, entropies


def backward_tokens(
    head: Head,
    states: torch.Tensor,
    targets: torch.Tensor,
    loss: ChunkLoss,
    of_weight: torch.Tensor,
    support: Support | None = None,
    taught: ChunkDistributionLoss | None = None,
) -> torch.Tensor:
    """Returns the loss's gradient for the states, [T, width]; adds the weight's gradient to `of_weight` (float32).

    support: as in `measure_tokens`.
    taught: a loss of whole distributions that is added to `loss`.
    """
    of_states = torch.empty_like(states)
    for chunk in slices(chunk_rows(head), len(targets)):
        gradient = head.products.matmul(states[chunk], head.weight.t())
        _restrict(gradient, support, chunk)
        scale = _to_gradient(head, gradient, targets[chunk], partial(loss, chunk), taught and partial(taught, chunk))
        if head.products.widens:
            of_states[chunk] = head.products.matmul(gradient, head.weight).mul_(scale)
        else:
            torch.mm(gradient, head.weight, out=of_states[chunk]).mul_(scale)
        scaled = (states[chunk] * scale).to(states.dtype)
        if states.dtype == of_weight.dtype:
            of_weight.addmm_(gradient.t(), scaled)
        else:
            of_weight.add_(head.products.matmul(gradient.t(), scaled).float())
    return of_states


def read_tokens(
    head: Head, states: torch.Tensor, support: Support | None, read: Callable[[slice, torch.Tensor], None]
) -> None:
    """Calls a function with the log-distributions of each chunk's tokens, [n, vocabulary].

    states, support: as in `measure_tokens`.
    """
    for chunk in slices(chunk_rows(head), len(states)):
        logits = head.products.matmul(states[chunk], head.weight.t())
        _restrict(logits, support, chunk)
        read(chunk, torch.log_softmax(logits.float() / head.temperature, dim=-1))


def _of_distributions(head: Head, logits: torch.Tensor, loss: DistributionsLoss) -> torch.Tensor:
    """Returns the gradient of a loss of a chunk's distributions by the scaled logits, [n, vocabulary] float32."""
    with torch.enable_grad():
        scaled = (logits.float() / head.temperature).requires_grad_()
        (found,) = torch.autograd.grad(loss(torch.log_softmax(scaled, dim=-1)), scaled)
    return found


def _to_gradient(
    head: Head, logits: torch.Tensor, targets: torch.Tensor, loss: ValuesLoss, taught: DistributionsLoss | None
) -> torch.Tensor:
    """Turns a chunk's logits, [n, vocabulary], into the loss's gradient, up to a factor per row, [n, 1].

    With p the distribution, d log p_t / d logit_v = [v = t] - p_v, and d H / d logit_v = -p_v (log p_v + H).
    Returns the factor.
    """
    strips = list(_strips(head, logits))
    by_logit = None if taught is None else _of_distributions(head, logits, taught)
    parts = [_values(head, logits[strip], targets[strip], slopes=True) for strip in strips]
    log_probs, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
    by_log_prob, by_entropy = _derivatives(log_probs, entropies, loss)
    if by_entropy is None and by_logit is None:
        return by_log_prob[:, None].div(-head.temperature)
    for strip in strips:
        slopes, at = logits[strip].float(), targets[strip, None]
        gradient = slopes * by_log_prob[strip, None]
        if by_entropy is not None:
            probabilities = slopes.scatter(1, at, log_probs[strip, None].detach().exp())
            of_entropy = torch.xlogy(probabilities, probabilities)
            of_entropy.addcmul_(probabilities, entropies[strip, None].detach())
            gradient += of_entropy.mul_(by_entropy[strip, None])
        logits[strip] = gradient if by_logit is None else gradient.sub_(by_logit[strip])
    return by_log_prob.new_full((len(targets), 1), -1.0 / head.temperature)


def chunk_rows(head: Head) -> int:
    """Returns the number of tokens in a chunk."""
    if head.weight.device.type != "cpu":
        return max(GPU_LOGITS // len(head.weight), FEWEST)
    return min(max(CHUNK_LOGITS // len(head.weight), FEWEST), MOST)


def _strips(head: Head, logits: torch.Tensor) -> Iterator[slice]:
    on_cores = head.weight.device.type == "cpu"
    rows = max(STRIP_LOGITS // len(head.weight), FEWEST_OF_STRIP) if on_cores else len(logits)
    return slices(rows, len(logits))


def _restrict(logits: torch.Tensor, support: Support | None, chunk: slice) -> None:
    """Excludes the tokens outside of a chunk's supports from its logits, [n, vocabulary], in place."""
    if support is not None:
        logits.masked_fill_(excluded(support.at(chunk), logits.shape[1], logits.device), EXCLUDED)


def _values(
    head: Head, logits: torch.Tensor, targets: torch.Tensor, slopes: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities and entropies, [n]; entropies are empty if the head computes none.

    logits: [n, vocabulary] before the temperature; overwritten.
    slopes: whether the logits are overwritten with p_v - [v = t].
    """
    wide, targets = logits.float(), targets[:, None]
    if head.temperature != 1.0:
        wide.div_(head.temperature)
    probabilities, of_targets = torch.softmax(wide, dim=-1), wide.gather(1, targets)
    log_probs = probabilities.gather(1, targets).log_()
    if len(least := (log_probs < LEAST_BY_MASS).nonzero()[:, 0]):
        log_probs[least] = torch.log_softmax(wide[least], dim=-1).gather(1, targets[least])
    entropies = log_probs.new_empty(0)
    if head.entropies:
        # -log p_v = log of the sum of exponentials - logit_v
        entropies = (of_targets - log_probs)[:, 0] - wide.mul_(probabilities).sum(-1)
    if slopes:
        # In float32: 1 - p_t may be too small for a narrower dtype to distinguish from 0.
        logits.copy_(probabilities.scatter_add_(1, targets, torch.full_like(log_probs, -1.0)))
    return log_probs[:, 0], entropies


def _derivatives(
    log_probs: torch.Tensor, entropies: torch.Tensor, loss: ValuesLoss
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the loss's derivatives by log-probability and entropy, [n]; None for an entropy that the loss ignores."""
    with torch.enable_grad():
        value = loss(log_probs.requires_grad_(), entropies.requires_grad_())
        by_log_prob, by_entropy = torch.autograd.grad(value, (log_probs, entropies), allow_unused=True)
    assert by_log_prob is not None
    return by_log_prob, by_entropy
