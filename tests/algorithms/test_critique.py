"""Credit by critique (arXiv 2508.02298): the five votes and the token rewards, literally."""

from __future__ import annotations

import numpy as np
import pytest

from yatt_core.algorithms.advantages.base import group_normalised
from yatt_core.algorithms.critique import token_rewards, voted

FOUR = [{1, 2}, {1, 2, 3}, {1, 3}, {1}]
"""Four critiques of four steps: step 1 is named by all, 2 and 3 by two, 4 by none."""


@pytest.mark.parametrize(
    ("vote", "critiques", "expected"),
    [
        ("intersection", FOUR, [1, 0, 0, 0]),
        ("majority", FOUR, [1, 1, 1, 0]),
        ("majority", [{1}, {2}, set()], [0, 0, 0, 0]),
        ("majority", [{1, 2}, {2}, set()], [0, 1, 0, 0]),
        ("majority", [{1}, set(), set(), set()], [0, 0, 0, 0]),
        ("union", FOUR, [1, 1, 1, 0]),
        ("union", [set(), {4}], [0, 0, 0, 1]),
        ("average", FOUR, [1, 0.5, 0.5, 0]),
        ("average", [[3, 3], []], [0, 0, 0.5, 0]),
        ("greedy", FOUR, [1, 1, 0, 0]),
        ("intersection", [set()], [0, 0, 0, 0]),
    ],
)
def test_the_five_votes(vote, critiques, expected):
    assert voted(critiques, 4, vote).tolist() == expected


@pytest.mark.parametrize("critiques", [[], [{5}], [{0}], [{1}, {-1}]])
def test_a_vote_on_nothing_or_on_another_step_is_refused(critiques):
    with pytest.raises(ValueError, match=r"critique"):
        voted(critiques, 4, "union")


@pytest.mark.parametrize(("outcome", "expected"), [(1.0, [2, 2, 1, 1, 2]), (0.0, [0, 0, -1, -1, 0])])
def test_token_rewards_are_two_if_right_and_one_less_in_a_wrong_step(outcome, expected):
    steps = np.array([0, 0, 1, 1, 2])
    assert token_rewards(outcome, np.array([0.0, 1.0, 0.0]), steps, 2.0, 1.0).tolist() == expected


def test_a_share_of_the_vote_is_a_share_of_the_penalty():
    assert token_rewards(1.0, np.array([0.25]), np.array([0]), 2.0, 4.0).tolist() == [1.0]


def test_advantages_are_normalised_over_all_tokens_of_a_group():
    right = token_rewards(1.0, np.array([0.0, 1.0]), np.array([0, 0, 1]), 2.0, 1.0)
    wrong = token_rewards(0.0, np.array([1.0]), np.array([0]), 2.0, 1.0)
    rewards = np.concatenate([right, wrong])
    assert rewards.tolist() == [2, 2, 1, -1]
    found = group_normalised(rewards, np.array([4]), 0.0)
    deviation = np.sqrt((1 + 1 + 0 + 4) / 3)
    assert found == pytest.approx(np.array([1, 1, 0, -2]) / deviation)
