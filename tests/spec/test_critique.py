"""The spec of critiques: what it needs from parts, rollout and algorithm, and what it says if that is missing."""

from __future__ import annotations

import pytest

from tests.spec.trees import mistakes, spec, tells

RIGHT = {"name": "right", "function": "exact_match"}
RULE = {"name": "wrong", "function": "package.module:rule", "weight": 0}
JUDGE = {
    "name": "wrong", "kind": "generative", "template": "{prompt} {steps}", "parse": {"kind": "wrong_steps"},
    "model": {"kind": "folder", "path": "judge"}, "judgements": 4, "weight": 0,
}  # fmt: skip
REWARD_MODEL = {
    "name": "wrong",
    "kind": "reward_model",
    "model": {"kind": "folder", "path": "judge"},
    "weight": 0,
}


def with_critique(part, critique=None, **changes):
    return {"rewards__parts": [RIGHT, part], "rewards__critique": {"part": "wrong", **(critique or {})}, **changes}


@pytest.mark.parametrize("part", [RULE, JUDGE], ids=["rule", "judge"])
def test_the_defaults_are_the_papers(part):
    critique = spec(**with_critique(part)).rewards.critique
    assert critique is not None
    assert (critique.outcome_weight, critique.wrong_step_penalty, critique.vote) == (2.0, 1.0, "intersection")
    assert critique.steps.kind == "blank_lines"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (with_critique({**RULE, "name": "other"}), ("rewards.critique.part", "'wrong'", "['right', 'other']")),
        (with_critique(RULE, {"part": "right"}), ("rewards.critique.part", "'right'", "rewards.accuracy_part")),
        (with_critique({**RULE, "weight": 1}), ("rewards.parts", "weight", "expected 0")),
        (with_critique(REWARD_MODEL), ("rewards.parts", "parse: {kind: wrong_steps}")),
        (with_critique(JUDGE, {"vote": "greedy"}), ("rewards.parts", "judgements", "expected 1", "4")),
        (with_critique(JUDGE, {"vote": "unanimous"}), ("rewards.critique.vote", "'unanimous'", "'union'")),
        (with_critique(JUDGE, {"wrong_step_penalty": -1}), ("rewards.critique.wrong_step_penalty", "0")),
        (
            with_critique(JUDGE, {"steps": {"kind": "marker", "pattern": "x*"}}),
            ("rewards.critique.steps.pattern", "empty"),
        ),
        (with_critique(JUDGE, algorithm__loss={"kind": "gspo"}), ("algorithm.loss.kind", "gspo", "clip")),
        (with_critique(JUDGE, algorithm={"advantage": {"kind": "gae"}, "critic": {}}), ("algorithm.advantage", "gae")),
        (with_critique(JUDGE, algorithm__reward_scaling="running"), ("algorithm.reward_scaling", "none")),
        (
            with_critique(JUDGE, rollout__tools={"functions": [{"name": "add", "function": "calculator"}]}),
            ("rewards.critique", "rollout.tools"),
        ),
        ({"rewards__parts": [RIGHT, JUDGE]}, ("rewards.parts", "rewards.critique", "part: wrong")),
        (with_critique({**JUDGE, "parse": {"kind": "number"}}), ("rewards.parts", "{steps}", "wrong_steps")),
        (with_critique({**JUDGE, "template": "{response}"}), ("rewards.parts", "{steps}", "wrong_steps")),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, facts):
    said = mistakes(**changes)
    assert any(tells(line, *facts) for line in said), said
