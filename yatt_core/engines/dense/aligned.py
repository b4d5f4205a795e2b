"""Arithmetic that a sampler and a trainer share to the last bit: products with enough rows, and attention in pieces.

Consumes rows, and queries, keys and values of any number of sequences. Produces what has the same bits for a row or a query
whichever others are computed beside it: a sampler's one token of each response, and a trainer's whole responses. What could
differ is the order of sums, and it is fixed by three rules:

- A product has at least `FEWEST_ROWS` rows, below which another kernel adds in another order, even in MKL's strict mode, which
  `yatt_core` asks for.
- Keys come in pieces of `PIECE` slots. Within a piece a product adds slot by slot; pieces are added one after another. Slots
  that a query does not see add exact zeros.
- A prompt's keys and a response's begin pieces of their own, because a sampler holds a prompt once for all of its responses.

Between its two products attention is float32, whatever the type of its operands. Queries take turns in blocks, so that scores
need memory in proportion to the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from yatt_core.bfloat16.products import NATIVE, WIDENED, Products
from yatt_core.engines.dense.pieces import FEWEST_ROWS, ON_CORES_ALONE, PIECE, QUERY_BLOCK
from yatt_core.errors import ConfigurationError


def require_cores(device: torch.device) -> None:
    """Raises `ConfigurationError` for a GPU."""
    if device.type != "cpu":
        raise ConfigurationError(ON_CORES_ALONE)


def aligned_products(dtype: torch.dtype) -> Products:
    """Returns the products of aligned engines: in float32, of bfloat16 values as well, and never of few rows."""
    products = WIDENED if dtype == torch.bfloat16 else NATIVE
    return replace(products, matmul=_of_enough_rows(products.matmul))


def causal_mask(queries: int, slots: int, device: torch.device) -> torch.Tensor:
    """Returns 0 where a query sees a slot, the first up to its own, and -inf elsewhere: [1, 1, queries, slots]."""
    hidden = torch.full((queries, slots), -torch.inf, device=device).triu_(1)
    return hidden[None, None]


def attend_aligned(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Computes attention, [b, n, heads, size], in the type of the queries.

    queries: [b, n, heads, size].
    keys, values: [b, m, key/value heads, size]; m fills whole pieces.
    mask: [b or 1, 1, n, m] in float32, 0 or -inf; a query sees at least one slot.
    """
    batch, count, heads, size = queries.shape
    by_key = queries.view(batch, count, keys.shape[2], -1, size).permute(0, 2, 3, 1, 4)
    found: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        by_key, keys.transpose(1, 2), values.transpose(1, 2), mask
    )
    return found.view(batch, heads, count, size).transpose(1, 2)


def scores_of(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns q k^T / sqrt(size), [b, heads, n, m], of queries [b, heads, n, size] and keys [b, heads, m, size] in float32."""
    return _enough_rows(queries, keys.transpose(-1, -2)).mul(queries.shape[-1] ** -0.5)


def masses_of(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns exp(score - highest score), [b, heads, n, m], and its sum over the slots, [b, heads, n, 1].

    scores, mask: as above; m fills whole pieces.
    """
    shown = scores + mask
    masses = shown.sub_(shown.amax(-1, keepdim=True)).exp_()
    of_pieces = masses.view(*masses.shape[:-1], -1, PIECE).sum(-1)
    total = of_pieces[..., :1]
    for piece in range(1, of_pieces.shape[-1]):
        total = total + of_pieces[..., piece : piece + 1]
    return masses, total


def taken_from(masses: torch.Tensor, values: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the sum over slots of mass times value, [b, heads, n, size].

    masses: [b, heads, n, m], m in whole pieces.
    values: [b, heads, m, size] in float32.
    before: the sum over earlier slots, to which the pieces are added.
    """
    found = before
    for start in range(0, masses.shape[-1], PIECE):
        piece = slice(start, start + PIECE)
        part = _enough_rows(masses[..., piece].contiguous(), values[..., piece, :].contiguous())
        found = part if found is None else found + part
    assert found is not None
    return found


class _Attention(torch.autograd.Function):
    """Attention over [b, heads of keys, queries that share a key, n, size], in blocks of queries.

    The backward pass computes its weights again, which are more than its operands.
    """

    @staticmethod
    def forward(ctx: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> Any:
        ctx.save_for_backward(queries, keys, values, mask)
        keys = keys.float()
        values = values.float()
        found = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        for block in _blocks(queries):
            attended = _attended(_rows(queries, block), keys, values, mask[..., block, :])
            found[..., block, :] = attended.reshape(queries[..., block, :].shape)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        queries, keys, values, mask = ctx.saved_tensors
        dtype = queries.dtype
        keys = keys.float()
        values = values.float()
        of_queries = torch.empty(queries.shape, dtype=dtype, device=queries.device)
        of_keys = torch.zeros_like(keys)
        of_values = torch.zeros_like(values)
        for block in _blocks(queries):
            asked = _rows(queries, block)
            gradient = _rows(gradients[0], block)
            weights, of_scores = _score_gradients(
                queries=asked, keys=keys, values=values, mask=mask[..., block, :], gradient=gradient
            )
            of_values += torch.matmul(weights.transpose(-1, -2), gradient)
            of_keys += torch.matmul(of_scores.transpose(-1, -2), asked)
            of_queries[..., block, :] = torch.matmul(of_scores, keys).reshape(queries[..., block, :].shape)
            del weights, of_scores  # before those of the next block
        return of_queries, of_keys.to(dtype), of_values.to(dtype), None


def _blocks(queries: torch.Tensor) -> Iterator[slice]:
    """Yields the blocks of the queries [..., n, size]."""
    count = queries.shape[-2]
    return (slice(start, min(start + QUERY_BLOCK, count)) for start in range(0, count, QUERY_BLOCK))


def _rows(states: torch.Tensor, block: slice) -> torch.Tensor:
    """Returns a block of [b, heads, sharing, n, size] in float32, as the rows of a product: [b, heads, sharing * block, size]."""
    return states[..., block, :].float().flatten(2, 3)


def _attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns what a block of queries attends to, in its shape. Arguments as for `_block_masses`."""
    masses, total = _block_masses(queries, keys, mask)
    return taken_from(masses, values) / total


def _score_gradients(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a block's weights, and the gradients of its products q k^T. Arguments as for `_block_masses`.

    gradient: of what the block attends to, in its shape.
    """
    masses, total = _block_masses(queries, keys, mask)
    weights = masses.div_(total)
    of_weights = torch.matmul(gradient, values.transpose(-1, -2))
    # weight * (d L / d weight - sum over keys of weight * d L / d weight)
    of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
    return weights, of_scores.mul_(queries.shape[-1] ** -0.5)


def _block_masses(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `masses_of` does, of queries [b, heads, sharing * block, size] in float32.

    mask: [b or 1, 1, block, m]; the queries that share a key have the same.
    """
    scores = scores_of(queries, keys)
    masses, total = masses_of(scores.reshape(*scores.shape[:2], -1, *mask.shape[-2:]), mask[:, :, None])
    return masses.flatten(2, 3), total.flatten(2, 3)


def _of_enough_rows(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Returns a product that adds rows of zeros to the left operand if it has few, and leaves them out of the result."""

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        rows = left.shape[-2]
        if rows >= FEWEST_ROWS:
            return multiply(left, right)
        return multiply(pad(left, (0, 0, 0, FEWEST_ROWS - rows)), right)[..., :rows, :]

    return product


_enough_rows = _of_enough_rows(torch.matmul)
