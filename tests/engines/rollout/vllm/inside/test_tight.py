"""An engine short of memory: prompts wait, sequences are preempted, and none of their bits change."""

from __future__ import annotations

import pytest

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, prompts_of, request_of, rows_of
from tests.engines.rollout.vllm.inside.conftest import core_of

BLOCK_BYTES = 32 * 512
"""Bytes of a cache block: 32 tokens, each with the keys and values of two layers with one head of 32."""
LONGEST = MAX_PROMPT + MAX_NEW
LENGTHS = [60] * 12 + [300, 130, 61, 200]


@pytest.fixture(scope="module")
def expected(make_case_here):
    """Returns the answers of an engine that has room for all sequences."""
    case = make_case_here()
    return rows_of(case.engine.generate(answered()))


def answered():
    return request_of(prompts_of(LENGTHS), samples=2, stop_tokens=(), max_new_tokens=MAX_NEW)


def test_waiting_prompts_keep_their_bits(expected, make_case_here):
    """Unless prompts are read whole, vLLM fails on a CPU: it cannot take back a number drawn from a seed."""
    case = make_case_here(max_num_batched_tokens=16)  # as runs of earlier versions may have it
    assert core_of(case).vllm_config.scheduler_config.max_num_batched_tokens == LONGEST < sum(LENGTHS)
    assert rows_of(case.engine.generate(answered())) == expected


def test_preempted_sequences_keep_their_bits(expected, make_case_here, monkeypatch):
    case = make_case_here(kv_cache_memory_bytes=14 * BLOCK_BYTES)
    scheduler = core_of(case).engine_core.engine_core.scheduler
    gave_way = list[str]()
    give_way = scheduler._preempt_request

    def watched(request, *arguments, **options):
        gave_way.append(request.request_id)
        return give_way(request, *arguments, **options)

    monkeypatch.setattr(scheduler, "_preempt_request", watched)
    assert rows_of(case.engine.generate(answered())) == expected
    assert gave_way
