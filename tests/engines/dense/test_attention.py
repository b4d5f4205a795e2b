"""Attention that keeps its weights: matches torch forwards and backwards, up to the length where torch takes over."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from yatt_core.engines.dense import attention
from yatt_core.engines.dense.attention import LONGEST_KEPT, attend_masked

BATCH = 3
HEADS = 4
KEY_HEADS = 2
SIZE = 16


def states(queries, keys, dtype):
    """Returns leaves and a mask: each query sees the keys before it, except the first few keys of one sequence."""
    noise = torch.Generator().manual_seed(0)
    shapes = [(BATCH, queries, HEADS, SIZE), (BATCH, keys, KEY_HEADS, SIZE), (BATCH, keys, KEY_HEADS, SIZE)]
    leaves = [torch.randn(shape, generator=noise).to(dtype).requires_grad_() for shape in shapes]
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1).repeat(BATCH, 1, 1, 1)
    hidden[1, :, :, : (keys - queries) // 2] = True
    return leaves, torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def with_gradients(attended, leaves):
    """Returns the attended values and the gradients of the leaves, in float64."""
    noise = torch.Generator().manual_seed(1)
    attended.backward(torch.randn(attended.shape, generator=noise).to(attended.dtype))
    return [attended.detach().double(), *(leaf.grad.double() for leaf in leaves)]


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("keys", [20, LONGEST_KEPT, LONGEST_KEPT + 1])
def test_matches_torch(dtype, gap, keys):
    leaves, mask = states(12, keys, dtype)
    found = with_gradients(attend_masked(*leaves, mask), leaves)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    turned = scaled_dot_product_attention(
        *(part.transpose(1, 2) for part in wide), attn_mask=mask.double(), enable_gqa=True
    )
    for ours, theirs in zip(found, with_gradients(turned.transpose(1, 2), wide), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < gap


@pytest.mark.parametrize("count", [LONGEST_KEPT, LONGEST_KEPT + 1])
def test_without_a_mask_each_query_sees_the_keys_up_to_its_own(count):
    leaves, _ = states(count, count, torch.float32)
    found = with_gradients(attend_masked(*leaves, None), leaves)
    mask = torch.full((count, count), -torch.inf).triu(1).expand(BATCH, 1, count, count)
    again = [leaf.detach().requires_grad_() for leaf in leaves]
    for ours, theirs in zip(found, with_gradients(attend_masked(*again, mask), again), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-6


def test_only_short_sequences_keep_their_weights(monkeypatch):
    kept = []
    monkeypatch.setattr(attention, "_attend_keeping", lambda queries, keys, **_: kept.append(keys.shape[1]) or queries)
    for keys in (20, LONGEST_KEPT, LONGEST_KEPT + 1):
        leaves, mask = states(12, keys, torch.float32)
        attend_masked(*leaves, mask)
    assert kept == [20, LONGEST_KEPT]
