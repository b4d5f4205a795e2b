"""Attention in pieces: matches torch, and its bits do not depend on the number of slots."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from yatt_core.engines.rollout.torch.split_attention import PIECE, attend_by_pieces, join

SLOTS = 5 * PIECE
LENGTHS = (1, 15, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7, SLOTS)


def masked(length, slots, dtype=torch.float32):
    """Returns a mask that shows the first slots: [1, 1, 1, slots]."""
    return torch.zeros(1, 1, 1, slots, dtype=dtype).masked_fill_(torch.arange(slots) >= length, -torch.inf)


def states(queries, size, dtype=torch.float32):
    """Returns queries, keys and values of two heads."""
    noise = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, count, size, generator=noise).to(dtype) for count in (queries, SLOTS, SLOTS)]


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("length", LENGTHS)
def test_matches_torch(dtype, gap, length):
    queries, keys, values = states(8, 64, dtype)
    mask = masked(length, SLOTS, dtype)
    found = join(list(attend_by_pieces(queries, keys, values, mask)))
    expected = scaled_dot_product_attention(
        *(part.double() for part in (queries, keys, values)), attn_mask=mask.double()
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=gap, rtol=gap)


@pytest.mark.parametrize("size", [16, 30, 64, 128])
@pytest.mark.parametrize("queries", [1, 2, 4, 8, 28, 64, 100])
def test_slots_after_a_rows_own_change_no_bit(queries, size):
    asked, keys, values = states(queries, size)
    for length in LENGTHS:
        least = -(-length // 16) * 16
        found = [
            join(list(attend_by_pieces(asked, keys[:, :, :slots], values[:, :, :slots], masked(length, slots))))
            for slots in range(least, SLOTS + 1, 16)
        ]
        assert all(torch.equal(other, found[0]) for other in found[1:])
