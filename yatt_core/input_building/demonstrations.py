"""Which training prompts the warm-up learns from: the first of each source, shared out by weight, each with a reference answer.

Consumes a way to take a source's first prompts: from a run's inputs, or from the sources themselves before there are any.
Raises `ConfigurationError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from yatt_core.datasets.rows import read_rows
from yatt_core.datasets.sources import collect_prompts
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.media import media_address
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.spec.sections.data import DataSpec, ReasoningGymSource, Source

Take = Callable[[int, int], Sequence[Prompt]]
"""Takes the number of a source and how many prompts are wanted; returns its first training prompts, as many as there are."""


def take_demonstrations(count: int, weights: Sequence[float], take: Take) -> list[Prompt]:
    """The demonstrations of a run. weights: of its sources.

    Raises `ConfigurationError` when a source has too few, or one without an answer.
    """
    prompts: list[Prompt] = []
    for source, share in enumerate(apportion(count, weights)):
        found = take(source, share)
        _check_enough(count, source, share, len(found), "training prompts")
        prompts += found
    for prompt in prompts:
        if prompt.answer is None:
            raise ConfigurationError(
                f"warmup: prompt {prompt.prompt_id} has no reference answer to learn from; "
                "give one to every row, or leave the warm-up out"
            )
    return prompts


def check_demonstrations(data: DataSpec, seed: int, count: int, whole: bool) -> None:
    """Raises what `take_demonstrations` would of the inputs that are to be made. whole: the sources are small enough to part.

    Of larger ones it is known only whether they have the rows; which of these are training prompts is not.
    """
    weights = [source.weight for source in data.sources]
    if whole:
        train = collect_prompts(data, seed, _address).train
        take_demonstrations(count, weights, lambda source, share: tuple(itertools.islice(train[source], share)))
        return
    for number, share in enumerate(apportion(count, weights)):
        _check_enough(count, number, share, _rows_up_to(share, data.sources[number]), "rows")


def _rows_up_to(most: int, source: Source) -> int:
    if isinstance(source, ReasoningGymSource):
        return source.size
    return sum(1 for _ in itertools.islice(read_rows(source, "train", _address), most))


def _address(data: bytes, place: str) -> str:
    """Takes an image without decoding it: whether it can be is no question here."""
    return media_address(data)


def _check_enough(count: int, source: int, share: int, found: int, what: str) -> None:
    if found < share:
        raise ConfigurationError(
            f"warmup.demonstrations: {share} of {count} are to come from data.sources.{source}, which has {found} {what}"
        )
