"""The reward of this run. The data has no reference answers, so this one only judges the length of a response.

`yatt check` calls `score` on made-up responses and shows the scores. Replace it with what you want, and check again.
"""

from yatt_core.prompts.prompt import Prompt

WORDS = 50


def score(prompt: Prompt, response: str) -> float:
    """Returns 1.0 for a response of `WORDS` words, and less the more its length differs.

    prompt: the row, with `prompt.text`, and all its values in `prompt.entry`.
    response: the text that the model generated.
    """
    return max(0.0, 1.0 - abs(len(response.split()) - WORDS) / WORDS)
