"""The generative judge on vLLM: the same guarantees as on torch, and a prefix that questions share is read once."""

from __future__ import annotations

import pytest

from tests.engines.rollout.vllm.running import run_inside
from tests.judges.parts import item, verdicts
from tests.needs import NEEDS_VLLM
from yatt_core.judges.registry import build_judge

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
VLLM = {"kind": "vllm", "dtype": "float32", "max_num_seqs": 16}
ITEMS = [item(n, response, judgements=2) for n, response in enumerate(["nus", "sun", "", "nu", "snu snu", "x" * 9])]


@pytest.fixture(scope="module")
def wide_judged(tmp_path_factory):
    """Builds a run whose judge has a head size that vLLM accepts."""
    from examples.judge.folder import make_judge
    from tests.judges.conftest import NETWORK, TRAINING, judged_spec

    folder = tmp_path_factory.mktemp("judged") / "judge"
    spec = judged_spec(folder, engine=VLLM)
    make_judge(spec, NETWORK.model_copy(update={"hidden_size": 64, "max_positions": 256}), TRAINING)
    return spec.rewards.judges[0], str(folder)


@pytest.fixture(scope="module")
def judge(wide_judged):
    made = build_judge(*wide_judged)
    yield made
    made.engine.close()


def test_a_judgement_depends_only_on_its_item(judge):
    assert judge.capabilities == {"deterministic": True, "batch_invariant": True}
    whole = verdicts(judge, *ITEMS)
    for one in ITEMS:
        assert verdicts(judge, one) == {one.number: whole[one.number]}
    assert all(0 < judgement.tokens <= 2 for verdict in whole.values() for judgement in verdict.judgements)


def test_two_devices_give_the_judgements_of_one(judge, wide_judged):
    part, folder = wide_judged
    engine = part.engine.model_copy(update={"tensor_parallel_size": 2})
    pair = build_judge(part.model_copy(update={"engine": engine}), folder)
    try:
        assert pair.capabilities == {"deterministic": True, "batch_invariant": True}
        assert verdicts(pair, *ITEMS) == verdicts(judge, *ITEMS)
    finally:
        pair.engine.close()


def test_a_question_that_does_not_fit_fails_alone(judge):
    said = verdicts(judge, item(1, judgements=2), item(2, "x" * 300, judgements=2))
    assert said[1].error == "" and said[2].error.startswith("data: the judge's question has ")


def test_a_prefix_shared_by_questions_is_read_once(wide_judged, tmp_path):
    part, folder = wide_judged
    run_inside("judged.py", tmp_path, YATT_TEST_JUDGE=part.model_dump_json(), YATT_TEST_JUDGE_FOLDER=folder)
