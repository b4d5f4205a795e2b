"""The judge that `test_judge.py` has made, seen from inside its engine's process."""

from __future__ import annotations

import os

import pytest

from tests.engines.rollout.vllm.inside.conftest import core_of
from tests.judges.parts import item, verdicts
from yatt_core.judges.registry import build_judge
from yatt_core.spec.rewards.judges import GenerativePart

LONG = "sun" * 15
"""A prompt longer than a cache block."""


@pytest.fixture
def judge(vllm_here):
    part = GenerativePart.model_validate_json(os.environ["YATT_TEST_JUDGE"])
    return vllm_here(lambda: build_judge(part, os.environ["YATT_TEST_JUDGE_FOLDER"]))


def test_a_prefix_shared_by_questions_is_read_once(judge):
    """Template and prompt come before the response, so vLLM finds their blocks in its cache."""
    engine = core_of(judge)
    alone = verdicts(judge, item(1, "nus", LONG, judgements=2))
    read: list[int] = []
    step = engine.step

    def watched():
        outputs = step()
        read.extend(output.num_cached_tokens for output in outputs)
        return outputs

    engine.step = watched
    said = verdicts(judge, *[item(n, response, LONG, judgements=2) for n, response in enumerate(["snu", "nus", "un"])])
    del engine.step
    assert len(read) == 6 and min(read) >= 32
    assert said[1] == alone[1]
