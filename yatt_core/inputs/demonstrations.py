"""Selects the training prompts that SFT learns from: the first of each source, by weight; all need an answer.

Consumes a function that takes the first prompts of a source, either from a run's inputs or, before these exist,
from the sources themselves. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.spec.sections.model import MOST_DEMONSTRATIONS

Take = Callable[[int, int], Sequence[Prompt]]
"""Receives the index of a source and the number of prompts wanted; returns its first training prompts, at most
that many."""


def fitting_shares(weights: Sequence[float], sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of demonstrations of each source if the spec leaves the number to the data.

    weights, sizes: weight and number of training prompts of each source.
    """
    return tuple(map(min, apportion(MOST_DEMONSTRATIONS, weights), sizes))


def take_demonstrations(shares: Sequence[int], take: Take) -> list[Prompt]:
    """Returns the demonstrations of a run.

    shares: the number of demonstrations from each source.

    Raises `ConfigurationError` if a source has too few prompts, or a prompt has no answer.
    """
    prompts: list[Prompt] = []
    for source, share in enumerate(shares):
        found = take(source, share)
        check_enough(count=sum(shares), source=source, share=share, found=len(found), what="training prompts")
        prompts += found
    if answerless := [prompt.prompt_id for prompt in prompts if prompt.answer is None]:
        others = f"; {len(answerless) - 1} others of {len(prompts)} have none either" if len(answerless) > 1 else ""
        raise ConfigurationError(
            f"sft: prompt {answerless[0]} has no reference answer to learn from{others}; "
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
