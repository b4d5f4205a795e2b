"""Attention over a group's prompt and a row's own slots under one softmax: matches torch over both, concatenated."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from yatt_core.bfloat16.products import NATIVE, WIDENED
from yatt_core.engines.rollout.torch.joint_attention import RowGroups, attend_jointly

PROMPTS = 3
SAMPLES = 4
KEY_HEADS = 2
SHARING = 2
SIZE = 16
PROMPT_SLOTS = 32
OWN_SLOTS = 16


@pytest.mark.parametrize(
    ("dtype", "products", "gap"),
    [(torch.float32, NATIVE, 1e-6), (torch.bfloat16, NATIVE, 2e-2), (torch.bfloat16, WIDENED, 2e-2)],
)
def test_matches_torch(dtype, products, gap):
    noise = torch.Generator().manual_seed(0)
    # Some samples have left, others have moved; the last row is padding.
    places = torch.tensor([5, 0, 11, 2, 8, 0])
    count = len(places)
    asking = torch.full((PROMPTS * SAMPLES,), count - 1)
    asking[places[:-1]] = torch.arange(count - 1)
    queries, shared, own = (
        torch.randn(shape, generator=noise).to(dtype)
        for shape in (
            (count, KEY_HEADS, SHARING, SIZE),
            (2, PROMPTS, KEY_HEADS, PROMPT_SLOTS, SIZE),
            (2, count, KEY_HEADS, OWN_SLOTS, SIZE),
        )
    )
    of_prompts = torch.tensor([7, 32, 20])
    of_rows = torch.tensor([1, 16, 3, 9, 2, 1])
    prompts = places // SAMPLES
    hidden = torch.cat(
        [
            torch.arange(PROMPT_SLOTS) >= of_prompts[prompts, None],
            torch.arange(OWN_SLOTS) >= of_rows[:, None],
        ],
        dim=1,
    )
    mask = torch.zeros(count, 1, 1, PROMPT_SLOTS + OWN_SLOTS).masked_fill_(hidden[:, None, None], -torch.inf)
    held = [products.operand(each) for each in (shared, own)]
    found = attend_jointly(queries, *held, mask, RowGroups(asking, places, SAMPLES, in_order=False), products)
    keys, values = (torch.cat([shared[kind][prompts], own[kind]], dim=2).double() for kind in (0, 1))
    expected = scaled_dot_product_attention(queries.double(), keys, values, attn_mask=mask.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found[:-1].double(), expected[:-1], atol=gap, rtol=gap)


def test_rows_already_in_order_are_not_moved():
    noise = torch.Generator().manual_seed(0)
    numbers = torch.arange(PROMPTS * SAMPLES)
    moved, still = (RowGroups(numbers, numbers, SAMPLES, in_order) for in_order in (False, True))
    of_rows = torch.randn(len(numbers), KEY_HEADS, SHARING, SIZE, generator=noise)
    assert torch.equal(still.spread(of_rows), moved.spread(of_rows))
    grouped = torch.randn(PROMPTS, KEY_HEADS, SAMPLES * SHARING, SIZE, generator=noise)
    assert torch.equal(still.gather(grouped), moved.gather(grouped))
