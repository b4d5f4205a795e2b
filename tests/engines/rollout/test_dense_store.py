"""Keys and values of the fast runner: kept when they are moved to make room for more slots, although ranges overlap."""

import torch

from yatt_core.engines.rollout.torch.dense_runner import Store


def test_widening_keeps_what_is_stored():
    store = Store(torch.float32, torch.device("cpu"))
    store.begin((3, 2, 5, 2, 96, 4))
    store.begin((3, 2, 5, 2, 16, 4))
    expected = torch.arange(store.states.numel(), dtype=torch.float32).view(store.states.shape)
    store.states.copy_(expected)
    for slots in (32, 48, 96):
        store.widen(slots)
        assert store.states.shape == (3, 2, 5, 2, slots, 4)
        assert torch.equal(store.states[..., : expected.shape[4], :], expected)
        expected = store.states.copy_(torch.rand(store.states.shape)).clone()
    held = store.states.untyped_storage().nbytes()
    store.widen(16)
    assert store.states.untyped_storage().nbytes() == held and torch.equal(store.states, expected)
