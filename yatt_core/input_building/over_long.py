"""Leaves out or shortens prompts that are too long, as `data.over_long` says, and counts them.

Consumes the files of prompts and the run's codec; rewrites a file that contains such prompts. Reward functions
still get the whole row. Raises `DataError` for what cannot be shortened, and if no training prompt is left.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from yatt_core.datasets.sources import normalise
from yatt_core.errors import DataError, TooLongError
from yatt_core.inputs.manifest import HELD_OUT, TRAIN
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.prompt_files import PromptFile, PromptWriter
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.run import RunSpec

log = logging.getLogger(__name__)
NAMED = 3
"""Number of affected prompts that the log names."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What became of a file.

    sizes: prompts left, by source.
    affected: number of prompts left out or shortened.
    """

    sizes: tuple[int, ...]
    affected: int


def fit_prompts(spec: RunSpec, codec: TextCodec, path: Path, held_out: frozenset[str] = frozenset()) -> Fitted:
    """Rewrites a file without prompts that are too long; does not touch a file that has none.

    held_out: normalised texts of the held-out prompts. A prompt that is cut to one of them is left out.
    """
    shortened: list[str] = []
    sizes: Counter[int] = Counter()
    fitting = path.with_suffix(".fitting")
    with PromptWriter(fitting, spec.data.has_images) as writer:
        for prompt in _fitting(spec, codec, PromptFile(path), shortened, held_out):
            writer.add(prompt)
            sizes[prompt.source] += 1
    _require_some(spec, path.name, sizes)
    fitting.replace(path) if shortened else fitting.unlink()
    if shortened:
        named = ", ".join(shortened[:NAMED]) + (", ..." if len(shortened) > NAMED else "")
        log.warning("%s: %d prompts were too long (%s): %s", path.name, len(shortened), spec.data.over_long, named)
    return Fitted(tuple(sizes[source] for source in range(len(spec.data.sources))), len(shortened))


def _require_some(spec: RunSpec, name: str, sizes: Counter[int]) -> None:
    """Raises `DataError` if a part that the run needs has become empty."""
    if name == TRAIN:
        empty = [source for source in range(len(spec.data.sources)) if not sizes[source]]
        if empty:
            raise DataError(f"data.max_prompt_tokens: every training prompt of data.sources.{empty[0]} is too long")
    elif not sizes and (name == HELD_OUT or (spec.sft is not None and spec.data.probe)):
        raise DataError(
            f"data.max_prompt_tokens: every {'held-out' if name == HELD_OUT else 'probe'} prompt is too long"
        )


def _fitting(
    spec: RunSpec, codec: TextCodec, prompts: PromptFile, affected: list[str], held_out: frozenset[str]
) -> Iterator[Prompt]:
    """Yields the prompts to keep; appends the ids of those that were too long."""
    for prompt in prompts:
        if _fits(codec, prompt):
            yield prompt
            continue
        affected.append(prompt.prompt_id)
        if spec.data.over_long == "skip":
            continue
        cut = _shortened(codec, prompt, at_start=spec.data.over_long == "cut_start")
        if normalise(cut.text) not in held_out:
            yield cut


def _fits(codec: TextCodec, prompt: Prompt) -> bool:
    try:
        codec.encode_prompt(prompt.text, prompt.prompt_id, len(prompt.media))
    except TooLongError:
        return False
    return True


def _shortened(codec: TextCodec, prompt: Prompt, at_start: bool) -> Prompt:
    """Returns the prompt with as much of its text as fits, found by bisection."""
    if prompt.media:
        raise DataError(
            f"prompt {prompt.prompt_id}: a prompt with images cannot be shortened; use data.over_long: skip"
        )

    def cut(characters: int) -> Prompt:
        text = prompt.text[-characters:] if at_start else prompt.text[:characters]
        return replace(prompt, text=text)

    characters = bisect_left(range(1, len(prompt.text)), True, key=lambda count: not _fits(codec, cut(count)))
    if not characters:
        raise DataError(f"prompt {prompt.prompt_id}: nothing of it fits into data.max_prompt_tokens")
    return cut(characters)
