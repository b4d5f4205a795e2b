"""Attention over pieces of the slots, joined by their sums of exponentials: the same bits however many slots the neighbours need.

Consumes queries, keys, values and masks; produces the parts of an attention, and what they come to together. A matrix product
over many slots adds up in blocks whose borders follow from their number, so that a row would round otherwise beside longer ones;
within a piece it adds up slot by slot, and slots that are masked add exact zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from yatt_core.engines.dense.arithmetic import by_lanes

PIECE = 64

Part = tuple[torch.Tensor, torch.Tensor]
"""What queries take from some slots, [n, heads, queries, size], and the logarithms of their sums of exponentials,
[n, heads, queries] in float32."""

_ATTENTION: Callable[..., Part] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend_by_pieces(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> Iterator[Part]:
    """One part after another, of PIECE slots each but the last.

    queries: [n, heads, queries, size]. keys, values: [n, heads, slots, size]. mask: [n, 1, 1, slots], 0 or -inf; each row sees
    its first slots, one at the least.
    """
    slots = keys.shape[2]
    for start in range(0, slots, PIECE):
        piece = slice(start, min(start + PIECE, slots))
        taken, sums = _ATTENTION(queries, keys[:, :, piece], values[:, :, piece], attn_mask=mask[..., piece])
        # Where all of a piece is masked, its first slot is, and torch says 0.
        yield taken, sums + mask[..., start]


def join(parts: Sequence[Part]) -> torch.Tensor:
    """What the queries take from all slots together, in the dtype of the parts; a part that is masked altogether adds zeros."""
    logarithms = torch.stack([sums for _, sums in parts])
    masses = by_lanes(torch.exp, logarithms - logarithms.amax(0))
    total = masses[0]
    for mass in masses[1:]:
        total = total + mass
    shares = (masses / total).unsqueeze(-1)
    joined = parts[0][0] * shares[0]
    for (taken, _), share in zip(parts[1:], shares[1:], strict=True):
        joined = joined + taken * share
    return joined.to(parts[0][0].dtype)
