"""Attention over pieces of the slots, joined by their sums of exponentials: its bits do not depend on other rows.

Consumes queries, keys, values and masks; produces the parts of an attention, and their combination. A matrix
product over many slots adds up in blocks whose boundaries depend on the number of slots, so a row would round
differently next to longer rows. Within a piece it adds up slot by slot, and masked slots add exact zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from yatt_core.engines.dense.arithmetic import by_lanes

PIECE = 64

Part = tuple[torch.Tensor, torch.Tensor]
"""Attention of queries over some slots: the attended values, [n, heads, queries, size], and log-sum-exponentials.

Log-sum-exponentials are [n, heads, queries] in float32.
"""

_ATTENTION: Callable[..., Part] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend_by_pieces(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> Iterator[Part]:
    """Yields one part after another; each but the last covers PIECE slots.

    queries: [n, heads, queries, size].
    keys, values: [n, heads, slots, size].
    mask: [n, 1, 1, slots], 0 or -inf; each row sees its first slots, at least one.
    """
    slots = keys.shape[2]
    for start in range(0, slots, PIECE):
        piece = slice(start, min(start + PIECE, slots))
        taken, sums = _ATTENTION(queries, keys[:, :, piece], values[:, :, piece], attn_mask=mask[..., piece])
        # If a whole piece is masked, so is its first slot, and torch returns 0.
        yield taken, sums + mask[..., start]


def join(parts: Sequence[Part]) -> torch.Tensor:
    """Combines the parts into the attended values over all slots, in their dtype; a fully masked part adds zeros."""
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
