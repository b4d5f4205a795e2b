"""The reward function for reasoning-gym prompts, an entry point of the group `yatt.rewards`.

It has its own module, so that the package is imported when the function is looked up: not within the time limit
of the first call, and not by runs that do not need it.
"""

from __future__ import annotations

from yatt_core.datasets import gym
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import ResponseExtraction
from yatt_core.rewards.options import built_in


class TaskScore(ResponseExtraction):
    """Options of `reasoning_gym`.

    exact: whether a fully correct answer has the value 1, and any other 0.
    """

    exact: bool = False


@built_in(TaskScore)
def reasoning_gym(prompt: Prompt, response: str, options: TaskScore, final: str | None = None) -> float:
    """Returns the reasoning-gym task's own score of the answer in the response; 0 if there is none.

    A fully correct answer is one that the task scores 1.0: several tasks add fractions for right letters, whose sum may be
    just below 1 for an answer that goes on behind them. Raises `DataError` for a prompt from another source.
    """
    given = options.of_response(response, final)
    if given is None:
        return 0.0
    score = gym.score(given, prompt.entry)
    return float(score == 1.0) if options.exact else score
