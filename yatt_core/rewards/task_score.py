"""The reward function of reasoning-gym prompts, an entry point of the group `yatt.rewards`.

In a module of its own, so that the package is loaded when the function is looked up: not within the first call's time
limit, and not by runs that do without it.
"""

from __future__ import annotations

from yatt_core.datasets import gym
from yatt_core.prompts.stream import Prompt

EXACT_SCORE = 0.999
"""From here on a task's own score counts as fully right."""


def reasoning_gym(prompt: Prompt, response: str, exact: bool = False) -> float:
    """The reasoning-gym task's own score of the response; with `exact`, 1 for a fully right one and 0 for all others.

    Raises `DataError` for a prompt from another source.
    """
    score = gym.score(response, prompt.entry)
    return float(score >= EXACT_SCORE) if exact else score
