"""Values that a spec refuses: messages name the peer's file, line, key and value."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ops.starter.peers.refused import refuse_mistakes
from tests.ops.starter.peers.reading import of_keys
from yatt_core.errors import ConfigurationError

SAMPLED = {"rewards": {"parts": [{"name": "score", "function": "exact_match"}]}}
ROLLOUT = "actor_rollout_ref.rollout"
GRPO = {"algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 8}


def refusal(program: str, keys: dict[str, Any], named: bool = False, **added: Any) -> str:
    """Returns the message about a file with these keys, one a line."""
    translation = of_keys(program, keys)
    rewards = {} if "objective" in translation.tree else SAMPLED
    translation = replace(translation, tree={**translation.tree, "name": "new", **rewards, **added})
    with pytest.raises(ConfigurationError) as caught:
        refuse_mistakes(translation, "m.yaml", named)
    return str(caught.value)


@pytest.mark.parametrize(
    ("program", "keys", "place", "path"),
    [
        (
            "verl-ppo",
            {**GRPO, f"{ROLLOUT}.temperature": 0},
            f"line 3: {ROLLOUT}.temperature = 0",
            "rollout.temperature",
        ),
        ("verl-ppo", {**GRPO, f"{ROLLOUT}.top_p": 2}, f"line 3: {ROLLOUT}.top_p = 2", "rollout.top_p"),
        ("verl-sft", {"optim.clip_grad": 0}, "line 1: optim.clip_grad = 0", "trainer.optimizer.max_grad_norm"),
        ("verl-sft", {"engine.dtype": "float8"}, "line 1: engine.dtype = 'float8'", "trainer.engine.dtype"),
        ("trl-dpo", {"beta": 0}, "line 1: beta = 0", "objective.beta"),
        (
            "openrlhf-ppo",
            {"algo.advantage.estimator": "gae", "critic.adam.lr": 0},
            "line 2: critic.adam.lr = 0",
            "algorithm.critic.optimizer.learning_rate",
        ),
        (
            "trl-sft",
            {"adam_beta1": 1, "adam_beta2": 0.9},
            "line 1: adam_beta1 = 1, line 2: adam_beta2 = 0.9",
            "trainer.optimizer.betas.0",
        ),
    ],
)
def test_the_key_of_a_value_that_a_spec_refuses(program: str, keys: dict[str, Any], place: str, path: str) -> None:
    lines = refusal(program, keys).splitlines()
    assert any(line.startswith(f"m.yaml, {place}: {path}: ") for line in lines), lines
    assert all(line.startswith("m.yaml, line ") for line in lines)


def test_keys_that_contradict_each_other_and_what_no_key_says() -> None:
    alone = refusal("verl-ppo", {**GRPO, f"{ROLLOUT}.n": 1})
    assert alone.startswith(f"m.yaml, line 2: {ROLLOUT}.n = 1: "), alone
    trainer = {"optimizer": {"learning_rate": 0}, "engine": {"kind": "fsdp2"}}
    default = refusal("trl-sft", {}, trainer=trainer)
    assert default.startswith(
        "m.yaml: learning_rate = 2e-05, the default of TRL 1.16.0: trainer.optimizer.learning_rate: "
    )
    assert re.match(r"m\.yaml: name: ", refusal("trl-dpo", {}, name="Not A Name"))
    assert re.match(r"--name: .*Not A Name", refusal("trl-dpo", {"run_name": "x"}, named=True, name="Not A Name"))


@pytest.mark.parametrize(
    ("program", "keys", "place"),
    [
        ("trl-sft", {"seed": 1, "max_grad_norm": 0}, "file, line 2: max_grad_norm = 0: "),
        ("trl-grpo", {"max_grad_norm": None}, "file, line 1: max_grad_norm = None: "),
        ("openrlhf-dpo", {"max_norm": 0.0}, "file, line 1: max_norm = 0.0: "),
        (
            "openrlhf-ppo",
            {"algo.advantage.estimator": "gae", "critic.max_norm": 0.0},
            "file, line 2: critic.max_norm = 0.0: ",
        ),
    ],
)
def test_a_peer_without_a_bound_of_the_norm_is_refused_with_what_means_the_same(
    program: str, keys: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigurationError, match="one that no gradient reaches, such as 1e9") as caught:
        of_keys(program, keys)
    assert str(caught.value).startswith(place)
