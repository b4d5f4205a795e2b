"""Scores responses with one function, for tests."""

from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.rewards.scheme import FunctionPart, RewardSpec

PROMPT = Prompt(0, 4, "0/train/a.jsonl:5", "text", "answer", {"topic": "sums"})


def part(function, **rest):
    """Returns a part; a failure marks the sample."""
    return FunctionPart.model_validate({"name": "own", "function": function, "on_failure": "zero", **rest})


def completion(text, tokens=7, stop_reason="stop"):
    return Completion.of_turns(text, [text], tokens, stop_reason)


def scores(function, *texts, groups=None, **rest):
    """Returns the scores of responses to one prompt; by default they are one group."""
    scorer = RewardScorer(RewardSpec(parts=(part(function, **rest),)))
    numbers = groups or [0] * len(texts)
    return scorer.score([Scored(PROMPT, completion(text), group) for text, group in zip(texts, numbers, strict=True)])


def totals(function, *texts, **rest):
    return [score.total for score in scores(function, *texts, **rest)]


def errors(function, *texts, **rest):
    return [score.error for score in scores(function, *texts, **rest)]
