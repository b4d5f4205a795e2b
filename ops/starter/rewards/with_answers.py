"""The reward of this run: compares the final answer of a response with the reference answer.

`yatt check` calls `score` on made-up responses and shows the scores. Edit it as you like, and check again.
"""

import re

from yatt_core.prompts.stream import Prompt

MARKED = re.compile(r"<answer>(.*?)</answer>|\\boxed\{([^{}]*)\}", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def score(prompt: Prompt, response: str) -> float:
    """Returns 1.0 for the right answer, 0.1 for another answer, 0.0 for none.

    prompt: the row, with `prompt.text`, `prompt.answer`, and all its values in `prompt.entry`.
    response: the text that the model generated.
    """
    expected = plain(prompt.answer or "")
    found = final_answer(response, number=NUMBER.fullmatch(expected) is not None)
    if found is None:
        return 0.0
    return 1.0 if plain(found) == expected else 0.1


def final_answer(response: str, number: bool) -> str | None:
    r"""Returns the text of the last <answer> or \boxed{}, else the last number or the last line; None if there is none.

    number: whether the answer is a number.
    """
    if marked := MARKED.findall(response):
        return "".join(marked[-1])
    found = NUMBER.findall(response) if number else response.strip().splitlines()
    return found[-1] if found else None


def plain(answer: str) -> str:
    """Returns an answer without differences that do not matter."""
    return answer.strip().rstrip(".").replace(",", "").casefold()
