"""The reward of this run: compares the final answer of a response with the final answer of the reference.

`yatt check` calls `score` on made-up responses and shows the scores. Edit it as you like, and check again.
"""

from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import boxed, tagged
from yatt_core.rewards.written_numbers import last_number


def score(prompt: Prompt, response: str) -> float:
    """Returns 1.0 for the right answer, 0.1 for another answer, 0.0 for none.

    prompt: the row, with `prompt.text`, `prompt.answer`, and all its values in `prompt.entry`.
    response: the text that the model generated.
    """
    expected = final_answer(prompt.answer or "")
    found = final_answer(response)
    if expected == last_number(expected):  # a number may stand among other words
        found = last_number(found) or last_number(response) or ""
    if not found:
        return 0.0
    return 1.0 if found == expected else 0.1


def final_answer(text: str) -> str:
    r"""Returns the text in the last <answer> or \boxed{}, else after the last ####, else the last line."""
    marked = tagged(text, "answer") or boxed(text)
    if marked is None:
        marked = (text.rpartition("####")[2].strip().splitlines() or [""])[-1]
    return marked.strip().rstrip(".").replace(",", "").casefold()
