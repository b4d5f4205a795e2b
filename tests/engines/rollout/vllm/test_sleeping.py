"""The order in which a sleeping vLLM engine is woken: its weights for a sync, its cache for the next request."""

from __future__ import annotations

from yatt_core.engines.rollout.vllm.sleeping import PARTS, Sleep


def test_weights_wake_for_a_sync_and_the_cache_for_the_next_request() -> None:
    sleep = Sleep()
    assert sleep.wake(*PARTS) == (), "it is awake from the start"
    assert sleep.lie_down() == ((), True)
    assert sleep.wake("weights") == ("weights",)
    assert sleep.wake(*PARTS) == ("kv_cache",), "a part that is awake is not woken again"
    assert sleep.wake(*PARTS) == ()


def test_a_half_awake_engine_wakes_before_it_sleeps_again() -> None:
    sleep = Sleep()
    assert sleep.lie_down() == ((), True)
    assert sleep.lie_down() == ((), False), "it is already asleep"
    sleep.wake("weights")
    assert sleep.lie_down() == (("kv_cache",), True)
    assert sleep.wake(*PARTS) == PARTS
