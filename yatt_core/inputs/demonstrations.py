"""Which training prompts SFT learns from: the first of each source, shared out by weight, each with a reference answer.

Consumes a way to take a source's first prompts: from a run's inputs, or from the sources themselves before there are any.
Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.stream import Prompt, apportion

Take = Callable[[int, int], Sequence[Prompt]]
"""Takes the number of a source and how many prompts are wanted; returns its first training prompts, as many as there are."""


def take_demonstrations(count: int, weights: Sequence[float], take: Take) -> list[Prompt]:
    """The demonstrations of a run. weights: of its sources.

    Raises `ConfigurationError` when a source has too few, or one without an answer.
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
                "give one to every row, or leave SFT out"
            )
    return prompts


def check_enough(count: int, source: int, share: int, found: int, what: str) -> None:
    """Raises `ConfigurationError` for a source that has fewer rows than are wanted of it."""
    if found < share:
        raise ConfigurationError(
            f"sft.demonstrations: {share} of {count} are to come from data.sources.{source}, which has {found} {what}"
        )
