"""Limits on prompt and response together: those that YATT has on each, within the model's positions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ops.starter.peers.entries import List
from tests.ops.starter.peers.reading import at, of_keys

KEYS = {"trl-dpo": "max_length", "trl-sft": "max_length", "openrlhf-dpo": "data.max_len", "verl-sft": "data.max_length"}


def limits(program: str, keys: dict[str, Any], **known: Any) -> tuple[int, int, str]:
    """Returns the limits of prompt and response, and what is said about them."""
    translation = of_keys(program, keys, **known)
    (said,) = translation.lists[List.DIFFERENT]
    return at(translation, "data.max_prompt_tokens"), at(translation, "rollout.max_new_tokens"), said.why


@pytest.mark.parametrize("program", KEYS)
@pytest.mark.parametrize(
    ("limit", "positions", "longest", "expected"),
    [
        (128, 256, None, (128, 128)),
        (128, math.inf, (100, 100), (128, 128)),
        (128, 128, None, (64, 64)),
        (128, 129, None, (65, 64)),
        (128, 128, (100, 20), (104, 24)),
        (128, 128, (20, 100), (24, 104)),
        (128, 128, (128, 128), (64, 64)),
        (128, 200, (150, 10), (128, 72)),  # neither is above the peer's limit
        (1024, 128, (100, 20), (104, 24)),
        (1, 1, None, (1, 1)),
    ],
)
def test_prompt_and_response_share_the_models_positions(
    program: str, limit: int, positions: float, longest: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    prompt, response, why = limits(program, {KEYS[program]: limit}, positions=positions, longest=lambda: longest)
    assert (prompt, response) == expected
    assert (f"share the model's {positions} positions" in why) == (2 * limit > positions)
    assert "not known here" not in why


@pytest.mark.parametrize("program", KEYS)
def test_a_model_whose_positions_are_not_known_is_said(program: str) -> None:
    prompt, response, why = limits(program, {KEYS[program]: 128})
    assert (prompt, response) == (128, 128)
    assert "both share the model's positions, which are not known here" in why


@pytest.mark.parametrize(("program", "key"), [("trl-reward", "max_length"), ("openrlhf-rm", "data.max_len")])
def test_the_limit_of_a_reward_model_is_the_sum(program: str, key: str) -> None:
    assert limits(program, {key: 129})[:2] == (65, 64)
    assert limits(program, {key: 129}, positions=100)[:2] == (50, 50)


def test_without_a_limit_rows_have_the_models_positions() -> None:
    prompt, response, why = limits("trl-dpo", {"max_length": None}, positions=128)
    assert (prompt, response) == (64, 64)
    assert why.startswith("no limit there but the model's positions; here they share")
    assert at(of_keys("trl-dpo", {"max_length": None}, positions=math.inf), "rollout.max_new_tokens") is None


def test_sampled_responses_get_what_prompts_leave() -> None:
    known = {"positions": 128, "longest": lambda: (40, 0)}
    translation = of_keys("openrlhf-ppo", {"data.max_len": 128, "rollout.max_new_tokens": None}, **known)
    assert (at(translation, "data.max_prompt_tokens"), at(translation, "rollout.max_new_tokens")) == (50, 78)
