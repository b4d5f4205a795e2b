"""No task of reasoning-gym evaluates as code what a policy wrote: which ones would is known, and YATT asks none of them."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest
from reasoning_gym.factory import DATASETS

from ops.preflight.reward_trial import check_rewards
from yatt_core.datasets import gym
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec import load_spec

ROOT = Path(__file__).parents[2]
EVALUATORS = {"eval", "exec", "parse_expr", "sympify", "S", "literal_eval", "compile"}
OF_THEIR_OWN = {
    "basic_arithmetic": "evaluates the question that it makes",
    "bitwise_arithmetic": "evaluates the question of the entry",
    "bf": "compiles the program that it makes",
    "codeio": "runs programs of the package's data to make a question",
    "gsm_symbolic": "evaluates fractions of its own",
    "number_sorting": "evaluates the answer of the entry",
    "propositional_logic": "has a parser of its own, which evaluates nothing",
}
"""Tasks in whose modules one of these names is called, though not with a response."""


def called_in(module: ModuleType) -> set[str]:
    """Returns the names of what a module calls; of methods, their last names, except those of regular expressions."""
    calls = [node.func for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    return {ast.unparse(call).rpartition(".")[2] for call in calls if ast.unparse(call) != "re.compile"}


def test_the_tasks_that_evaluate_something_have_all_been_looked_at() -> None:
    """A new version of the package with another such task needs a decision."""
    tasks = {name: sys.modules[dataset.__module__] for name, (dataset, _) in DATASETS.items()}
    evaluating = {name for name, module in tasks.items() if called_in(module) & EVALUATORS}
    assert evaluating - OF_THEIR_OWN.keys() == gym.EVALUATES_RESPONSES


@pytest.mark.parametrize("task", sorted(gym.EVALUATES_RESPONSES))
def test_their_responses_are_not_scored(task: str) -> None:
    (row,) = gym.entries(task, {}, 5, 1)
    with pytest.raises(DataError, match=f"task '{task}' evaluates a response as Python code.*math_equal"):
        gym.score("1", row)
    with pytest.raises(DataError, match=f"task '{task}' evaluates a response"):
        gym.score("1", {**row, "task": "composite"})


def test_a_check_refuses_them_only_with_the_score_of_the_task() -> None:
    own = "data.sources=[{kind: reasoning_gym, task: countdown, size: 50}]"
    asked = load_spec(ROOT / "configs" / "virtual.yaml", [own, "rewards.parts=[{name: own, function: reasoning_gym}]"])
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'own': .*'countdown' evaluates a response"):
        check_rewards(asked)
    assert check_rewards(load_spec(ROOT / "configs" / "virtual.yaml", [own]))
