"""In which order a vLLM engine that sleeps is woken: its weights for a sync, its cache for the next request."""

from __future__ import annotations

from yatt_core.engines.rollout.vllm.sleeping import PARTS, Sleep


def test_weights_wake_for_a_sync_and_the_cache_for_the_next_request() -> None:
    sleep = Sleep()
    assert sleep.wake(*PARTS) == (), "it is awake from the start"
    assert sleep.lie_down() == ((), True)
    assert sleep.wake("weights") == ("weights",)
    assert sleep.wake(*PARTS) == ("kv_cache",), "what is awake is not woken again"
    assert sleep.wake(*PARTS) == ()


def test_what_is_half_awake_wakes_before_it_sleeps_again() -> None:
    sleep = Sleep()
    assert sleep.lie_down() == ((), True)
    assert sleep.lie_down() == ((), False), "it sleeps already"
    sleep.wake("weights")
    assert sleep.lie_down() == (("kv_cache",), True)
    assert sleep.wake(*PARTS) == PARTS
