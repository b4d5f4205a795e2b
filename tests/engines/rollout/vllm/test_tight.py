"""An engine that is short of room: prompts wait for others, sequences give way to others, and no bit of theirs changes."""

from __future__ import annotations

import pytest

from tests.engines.rollout.cases import MAX_NEW, prompts_of, request_of, rows_of
from tests.needs import NEEDS_VLLM

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
BLOCK_BYTES = 32 * 512
"""Of the cache: tokens, and the keys and values of one in two layers with a head of 32."""
LENGTHS = [60] * 12 + [300, 130, 61, 200]


@pytest.fixture(scope="module")
def expected(make_vllm_case):
    """What an engine that has room for all answers."""
    case = make_vllm_case()
    return rows_of(case.engine.generate(answered()))


def answered():
    return request_of(prompts_of(LENGTHS), samples=2, stop_tokens=(), max_new_tokens=MAX_NEW)


def test_prompts_that_wait_for_others_to_be_read(expected, make_vllm_case):
    """Without its remedy, to read no prompt in parts, vLLM breaks off on a CPU: it cannot take a seed's number back."""
    case = make_vllm_case(max_num_batched_tokens=16)
    assert case.engine._engine.vllm_config.scheduler_config.max_num_batched_tokens < sum(LENGTHS)
    assert rows_of(case.engine.generate(answered())) == expected


def test_sequences_that_give_way_and_are_read_anew(expected, make_vllm_case, monkeypatch):
    case = make_vllm_case(kv_cache_memory_bytes=14 * BLOCK_BYTES)
    scheduler, gave_way = case.engine._engine.engine_core.engine_core.scheduler, list[str]()
    give_way = scheduler._preempt_request

    def watched(request, *arguments, **options):
        gave_way.append(request.request_id)
        return give_way(request, *arguments, **options)

    monkeypatch.setattr(scheduler, "_preempt_request", watched)
    assert rows_of(case.engine.generate(answered())) == expected
    assert gave_way
