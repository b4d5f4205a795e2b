"""Requests for answers to held-out tasks, their seeds, and the results by task, on the virtual engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.seeding import toy_spec
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.evaluation.answers import TaskAnswers
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.stream import Prompt
from yatt_core.protocols.receipts import TaskResult
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.tools.toolbox import Toolbox

PROMPTS = [Prompt(0, n, f"held_out/0/{n}", f"question {n}", "x", {}) for n in range(7)]
TOOLS = {
    "functions": [{"name": "calculator", "function": "calculator"}], "max_turns": 3, "max_result_tokens": 4,
}  # fmt: skip


def spec_with(sampling: dict[str, Any] | None, **rollout: Any) -> RunSpec:
    tree = toy_spec().model_dump(mode="json")
    tree["evaluation"]["sampling"] = sampling
    tree["rollout"] |= rollout
    return parse_spec(tree, "toy")


def masked_spec(sampling: dict[str, Any] | None) -> RunSpec:
    """Returns a spec whose only reward part fails at answers of odd length, which leaves them without a score."""
    tree = spec_with(sampling).model_dump(mode="json")
    function = "tests.rewards.broken_rewards:raising_at_odd_lengths"
    tree["rewards"]["parts"] = [{"name": "picky", "function": function, "on_failure": "mask"}]
    return parse_spec(tree, "masked")


def answered(spec: RunSpec, slices: list[tuple[int, int]]) -> list[TaskResult]:
    """Returns the results of some slices of the tasks, each answered as by a controller of its own."""
    engine = build_rollout_engine(spec, "", Path())
    codec = open_codec(spec, "")
    engine.update_weights({"state": np.arange(4, dtype=np.int64)}, 3)
    found = []
    for start, stop in slices:
        answers = TaskAnswers(spec, codec, RewardScorer(spec.rewards), Toolbox(spec.rollout.tools))
        for batch in answers.batches(start, PROMPTS[start:stop]):
            while answers.hear(batch, engine.generate(answers.request(batch, 3))):
                pass
            found += answers.results(batch)
    return found


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_results_depend_neither_on_slices_nor_on_batches(tools: dict[str, Any] | None) -> None:
    sampling = {"samples": 4, "vote": {}}
    calls = {"engine": {**toy_spec().rollout.engine.model_dump(), "tool_call_fraction": 0.5}} if tools else {}
    whole = answered(spec_with(sampling, tools=tools, max_new_tokens=24, **calls), [(0, 7)])
    small = spec_with(sampling, tools=tools, max_new_tokens=24, samples_per_prompt=2, batch_samples=5, **calls)
    assert answered(small, [(0, 3), (3, 4), (4, 7)]) == whole
    assert [task.prompt_id for task in whole] == [prompt.prompt_id for prompt in PROMPTS]
    assert {task.samples for task in whole} == {4}
    assert len({task.correct for task in whole}) > 1, "samples differ"


def test_samples_of_a_task_share_its_prompt_in_the_first_turn() -> None:
    spec = spec_with({"samples": 3, "temperature": 0.6, "top_p": 0.9})
    answers = TaskAnswers(spec, open_codec(spec, ""), RewardScorer(spec.rewards), Toolbox(None))
    (batch,) = answers.batches(2, PROMPTS[2:4])
    request = answers.request(batch, 5)
    assert (len(request.prompts), request.seeds.shape, request.greedy) == (2, (2, 3), False)
    assert (request.temperature, request.top_p, request.weight_version) == (0.6, 0.9, 5)
    assert len(np.unique(request.seeds)) == 6
    (again,) = answers.batches(3, PROMPTS[3:4])
    assert (answers.request(again, 9).seeds == request.seeds[1]).all(), "the same noise in each evaluation"


def test_without_sampling_answers_are_greedy() -> None:
    spec = spec_with(None)
    answers = TaskAnswers(spec, open_codec(spec, ""), RewardScorer(spec.rewards), Toolbox(None))
    (batch,) = answers.batches(0, PROMPTS)
    assert answers.request(batch, 0).greedy
    assert {(task.samples, task.majority) for task in answered(spec, [(0, 7)])} == {(1, None)}


def test_an_answer_without_a_score_counts_only_among_those_without_one() -> None:
    spec = masked_spec({"samples": 4, "vote": {}})
    engine = build_rollout_engine(spec, "", Path())
    codec = open_codec(spec, "")
    engine.update_weights({"state": np.arange(4, dtype=np.int64)}, 3)
    answers = TaskAnswers(spec, codec, RewardScorer(spec.rewards), Toolbox(None))
    (batch,) = answers.batches(0, PROMPTS)
    answers.hear(batch, engine.generate(answers.request(batch, 3)))
    texts = [response.completion.final for response in batch.dialogue.responses]
    by_task = [[text for text in texts[4 * n : 4 * n + 4] if len(text) % 2 == 0] for n in range(len(PROMPTS))]
    assert len({len(scored) for scored in by_task}) > 2, "tasks lack different numbers of scores"
    for scored, task in zip(by_task, answers.results(batch), strict=True):
        right = sum(len(text) % 4 == 0 for text in scored)
        assert (task.samples, task.unscored, task.correct) == (len(scored), 4 - len(scored), right)
        assert task.reward == (right / len(scored) if scored else 0.0)
        assert (task.majority is None) == (not scored)
