"""The reward function for reasoning-gym prompts, an entry point of the group `yatt.rewards`.

It has its own module, so that the package is imported when the function is looked up: not within the time limit
of the first call, and not by runs that do not need it.
"""

from __future__ import annotations

from yatt_core.datasets import gym
from yatt_core.prompts.stream import Prompt

EXACT_SCORE = 0.999
"""A task's own score counts as fully correct if it is at least this value."""


def reasoning_gym(prompt: Prompt, response: str, exact: bool = False) -> float:
    """Returns the reasoning-gym task's own score of the response.

    exact: return 1 for a fully correct response and 0 for any other.

    Raises `DataError` for a prompt from another source.
    """
    score = gym.score(response, prompt.entry)
    return float(score >= EXACT_SCORE) if exact else score
