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
from typing import Any

from yatt_core.datasets.sources import normalise
from yatt_core.errors import DataError, TooLongError
from yatt_core.input_building.fitting import longer, prompt_tokens
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
    longest: the manifest's entry about the longest prompt left.
    """

    sizes: tuple[int, ...]
    affected: int
    longest: dict[str, Any]


def fit_prompts(spec: RunSpec, codec: TextCodec, path: Path, held_out: frozenset[str] = frozenset()) -> Fitted:
    """Rewrites a file without prompts that are too long; does not touch a file that has none.

    held_out: normalised texts of the held-out prompts. A prompt that is cut to one of them is left out.
    """
    shortened: list[str] = []
    sizes: Counter[int] = Counter()
    longest: dict[str, Any] = {"prompt_id": "", "tokens": 0}
    fitting = path.with_suffix(".fitting")
    with PromptWriter(fitting, spec.data.has_images) as writer:
        for prompt, tokens in _fitting(spec, codec, PromptFile(path), shortened, held_out):
            writer.add(prompt)
            longest = longer(longest, prompt, tokens)
            sizes[prompt.source] += 1
    _require_some(spec, path.name, sizes)
    fitting.replace(path) if shortened else fitting.unlink()
    if shortened:
        named = ", ".join(shortened[:NAMED]) + (", ..." if len(shortened) > NAMED else "")
        log.warning("%s: %d prompts were too long (%s): %s", path.name, len(shortened), spec.data.over_long, named)
    return Fitted(tuple(sizes[source] for source in range(len(spec.data.sources))), len(shortened), longest)


def _require_some(spec: RunSpec, name: str, sizes: Counter[int]) -> None:
    """Raises `DataError` if a part that the run needs has become empty."""
    if name == TRAIN:
        empty = [source for source in range(len(spec.data.sources)) if not sizes[source]]
        if empty:
            raise DataError(f"data.max_prompt_tokens: every training prompt of data.sources.{empty[0]} is too long")
    elif not sizes and (name == HELD_OUT or spec.sft is not None):
        raise DataError(
            f"data.max_prompt_tokens: every {'held-out' if name == HELD_OUT else 'probe'} prompt is too long"
        )


def _fitting(
    spec: RunSpec, codec: TextCodec, prompts: PromptFile, affected: list[str], held_out: frozenset[str]
) -> Iterator[tuple[Prompt, int]]:
    """Yields the prompts to keep and their tokens; appends the ids of those that were too long."""
    for prompt in prompts:
        if (tokens := _tokens(spec, codec, prompt)) is not None:
            yield prompt, tokens
            continue
        affected.append(prompt.prompt_id)
        if spec.data.over_long == "skip":
            continue
        cut = _shortened(spec, codec, prompt)
        if normalise(cut.text) not in held_out:
            yield cut, prompt_tokens(spec, codec, cut)


def _tokens(spec: RunSpec, codec: TextCodec, prompt: Prompt) -> int | None:
    """Returns the number of tokens of a prompt; None if it is too long."""
    try:
        return prompt_tokens(spec, codec, prompt)
    except TooLongError:
        return None


def _shortened(spec: RunSpec, codec: TextCodec, prompt: Prompt) -> Prompt:
    """Returns the prompt with as much of its text as fits, found by bisection."""
    if prompt.media or prompt.messages:
        what = "prompt with images" if prompt.media else "conversation"
        raise DataError(f"prompt {prompt.prompt_id}: a {what} cannot be shortened; use data.over_long: skip")

    def cut(characters: int) -> Prompt:
        at_start = spec.data.over_long == "cut_start"
        text = prompt.text[-characters:] if at_start else prompt.text[:characters]
        return replace(prompt, text=text)

    lengths = range(1, len(prompt.text))
    characters = bisect_left(lengths, True, key=lambda count: _tokens(spec, codec, cut(count)) is None)
    if not characters:
        raise DataError(f"prompt {prompt.prompt_id}: nothing of it fits into data.max_prompt_tokens")
    return cut(characters)
