"""What an engine is asked about its batches on GPUs, seen from inside its process, on processors."""

from __future__ import annotations

from typing import Any

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, VOCABULARY, Case, prompts_of, request_of, rows_of
from yatt_core.engines.rollout.vllm.invariance import repeats_in_a_crowd


def test_weights_that_are_loaded_again_are_the_same_and_what_is_asked_leaves_nothing(case_here: Case) -> None:
    engine: Any = case_here.engine
    request = request_of(prompts_of([60, 33]), samples=2)
    expected = rows_of(engine.generate(request))
    core = engine._core.core
    core._engine.collective_rpc("load_again")
    assert repeats_in_a_crowd(core, VOCABULARY, MAX_PROMPT + MAX_NEW, 64)
    assert rows_of(engine.generate(request)) == expected
    assert not core._ended and not core._supported
