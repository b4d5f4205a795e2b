"""Selects the training prompts that SFT learns from: the first of each source, by weight; all need an answer.

Consumes a function that takes the first prompts of a source, either from a run's inputs or, before these exist,
from the sources themselves. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.stream import Prompt, apportion

Take = Callable[[int, int], Sequence[Prompt]]
"""Receives the index of a source and the number of prompts wanted; returns its first training prompts, at most
that many."""


def take_demonstrations(count: int, weights: Sequence[float], take: Take) -> list[Prompt]:
    """Returns the demonstrations of a run.

    weights: the weights of its sources.

    Raises `ConfigurationError` if a source has too few prompts, or a prompt has no answer.
    """
    prompts: list[Prompt] = []
    for source, share in enumerate(apportion(count, weights)):
        found = take(source, share)
        check_enough(count, source, share, len(found), "training prompts")
        prompts += found
    for prompt in prompts:
        if prompt.answer is None:
            raise ConfigurationError(
                f"sft: prompt {prompt.prompt_id} has no reference answer to learn from; "
                "add one to every row, or leave sft out"
            )
    return prompts


def check_enough(count: int, source: int, share: int, found: int, what: str) -> None:
    """Raises `ConfigurationError` if a source has fewer rows than its share."""
    if found < share:
        raise ConfigurationError(
            f"sft.demonstrations: {share} of {count} must come from data.sources.{source}, which has only {found} "
            f"{what}"
        )
