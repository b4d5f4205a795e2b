"""How a response may write its answer, for trials of rewards with reference answers. Consumes an answer. Produces texts."""

from __future__ import annotations

FORMS = ("{}", r"\boxed{{{}}}", "<answer>{}</answer>", "#### {}", "Answer: {}")


def ways_to_write(answer: str) -> tuple[str, ...]:
    """Returns responses that give an answer: alone, and in the forms that prompts usually ask for."""
    return tuple(form.format(answer) for form in FORMS)
