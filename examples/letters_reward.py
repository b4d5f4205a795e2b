"""A reward function of your own: partial credit for an answer that is nearly right."""

from yatt_core.prompts.prompt import Prompt


def letters_in_place(prompt: Prompt, response: str) -> float:
    """Returns the fraction of the answer's letters that are in the right place."""
    answer = prompt.answer or ""
    pairs = zip(answer, response.strip(), strict=False)
    return sum(expected == found for expected, found in pairs) / max(1, len(answer), len(response.strip()))
