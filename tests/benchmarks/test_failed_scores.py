"""The function whose calls fail scores as the quickstart's own does, so that only the failures differ."""

from __future__ import annotations

from benchmarks.failed_scores import QUICKSTART, spelled
from yatt_core.datasets.sources import first_prompts
from yatt_core.rewards.task_score import TaskScore, reasoning_gym
from yatt_core.spec import load_spec

PROMPTS = 200


def test_without_failures_it_gives_the_scores_of_the_quickstarts_function() -> None:
    spec = load_spec(QUICKSTART)
    prompts = first_prompts(spec.data, spec.seed, PROMPTS)
    answers = [str(prompt.answer) for prompt in prompts]
    assert any(answer != answer.lower() for answer in answers), "some have capitals, which the tokenizer cannot write"
    for prompt, answer in zip(prompts, answers, strict=True):
        for response in (answer, answer.lower(), f" {answer.lower()}", answer[:-1], answer[::-1] + "x", ""):
            own = reasoning_gym(prompt, response, TaskScore(exact=True))
            assert spelled(prompt, response, failing=0.0) == own, (answer, response)
