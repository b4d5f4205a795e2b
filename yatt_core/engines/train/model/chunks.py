"""Cuts the counted tokens of a micro-batch into chunks for the head, so that no tensor of tokens x vocabulary exists.

Consumes the head's input and a function from a chunk of it to the chunk's part of the loss; produces the loss with
its gradients already computed. Only one chunk's logits exist at a time, forward or backward, and nothing of their size
is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

ChunkLoss = Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor]
"""(which tokens, their log-probabilities, their entropies or an empty tensor) -> their part of the loss, a scalar."""
PartLoss = Callable[[slice, torch.Tensor], torch.Tensor]
"""(which tokens, the head's input for them) -> their part of the loss, a scalar."""


def slices(rows: int, count: int) -> Iterator[slice]:
    """Yields the chunks of `count` tokens, `rows` in each; one empty chunk if there are no tokens."""
    for start in range(0, max(count, 1), rows):
        yield slice(start, min(start + rows, count))


def chunk_loss(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    measured: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> ChunkLoss:
    """Returns a loss on chunks whose gradients add up to those of a loss that needs all tokens at once.

    A loss of all tokens is computed here, from values without gradients. Its derivatives by each token's
    log-probability and entropy then make it a linear function of them, which can be cut into chunks.

    loss: of all log-probabilities and entropies, each [T].
    measured: the chunks' log-probabilities and entropies (or nothing).
    """
    log_probs, entropies = (torch.cat(values).detach().requires_grad_() for values in zip(*measured, strict=True))
    with torch.enable_grad():
        value = loss(log_probs, entropies)
        by_log_prob, by_entropy = torch.autograd.grad(value, (log_probs, entropies), allow_unused=True)
    assert by_log_prob is not None

    def part(chunk: slice, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        linear = (by_log_prob[chunk] * log_probs).sum()
        return linear if by_entropy is None else linear + (by_entropy[chunk] * entropies).sum()

    return part


def loss_in_chunks(
    states: torch.Tensor, weights: Sequence[torch.Tensor], rows: int, part_loss: PartLoss
) -> torch.Tensor:
    """Returns a loss, a scalar; its backward pass hands on gradients that are computed here.

    states: [T, width], the head's input.
    weights: the trained parameters that `part_loss` reads.
    rows: tokens in a chunk.

    The gradients of weights are summed over the chunks in float32. With a single chunk they have the bits of an
    ordinary backward pass.
    """
    chunks = list(slices(rows, len(states)))
    total = torch.zeros((), device=states.device)
    of_states = torch.empty_like(states, requires_grad=False)
    sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights] if len(chunks) > 1 else []
    found: list[torch.Tensor] = []
    for chunk in chunks:
        with torch.enable_grad():
            own = states[chunk].detach().requires_grad_()
            value = part_loss(chunk, own)
        of_states[chunk], *found = torch.autograd.grad(value, (own, *weights), materialize_grads=True)
        total += value.detach()
        for added, one in zip(sums, found, strict=False):
            added.add_(one)
        if sums:
            found.clear()
    of_weights = [one.to(weight.dtype) for one, weight in zip(sums, weights, strict=True)] if sums else found
    loss: torch.Tensor = _Known.apply(total, [of_states, *of_weights], states, *weights)  # type: ignore[no-untyped-call]
    return loss


class _Known(torch.autograd.Function):
    """A loss whose gradients are already known."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor], *_: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = ctx.gradients
        ctx.gradients = []
        return None, None, *(one.mul_(slope) for one in gradients)
