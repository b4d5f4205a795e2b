"""Checks that the sources have enough demonstrations before the inputs are built. Raises `ConfigurationError`."""

from __future__ import annotations

import itertools

from yatt_core.datasets.rows import read_rows
from yatt_core.datasets.sources import collect_prompts
from yatt_core.inputs.demonstrations import check_enough, take_demonstrations
from yatt_core.prompts.media import media_address
from yatt_core.prompts.stream import apportion
from yatt_core.spec.sections.data import DataSpec, ReasoningGymSource, Source
from yatt_core.spec.sections.model import MOST_DEMONSTRATIONS


def check_demonstrations(data: DataSpec, seed: int, count: int | None, whole: bool) -> None:
    """Raises the errors that `take_demonstrations` would raise after the inputs are built.

    count: number of demonstrations; None if it follows the data.
    whole: True if the sources are small enough to be divided into parts here.

    For larger sources, only the number of rows is checked, because it is not yet known which rows become training
    prompts.
    """
    weights = [source.weight for source in data.sources]
    if whole:
        train = collect_prompts(data, seed, _address).train
        if count is None:
            most = apportion(MOST_DEMONSTRATIONS, weights)
            shares = [sum(1 for _ in itertools.islice(train[source], share)) for source, share in enumerate(most)]
        else:
            shares = list(apportion(count, weights))
        take_demonstrations(shares, lambda source, share: tuple(itertools.islice(train[source], share)))
        return
    if count is None:
        return
    for number, share in enumerate(apportion(count, weights)):
        check_enough(
            count=count, source=number, share=share, found=_rows_up_to(share, data.sources[number]), what="rows"
        )


def _rows_up_to(most: int, source: Source) -> int:
    if isinstance(source, ReasoningGymSource):
        return source.size
    return sum(1 for _ in itertools.islice(read_rows(source, "train", _address), most))


def _address(data: bytes, place: str) -> str:
    """Returns the address of an image without decoding it; whether it can be decoded does not matter here."""
    return media_address(data)
