"""Leaves out or shortens prompts that are too long, as `data.over_long` says, and counts them.

Consumes the files of prompts and the run's codec; rewrites a file that contains such prompts. Reward functions
still get the whole row. Raises `DataError` for what cannot be shortened, and if no training prompt is left.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yatt_core.datasets.sources import normalise
from yatt_core.errors import DataError, TooLongError
from yatt_core.input_building.lengths import PromptLengths
from yatt_core.input_building.prompt_tokens import longer, prompt_tokens
from yatt_core.inputs.manifest import HELD_OUT, TRAIN
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.prompt_files import PromptFile, PromptWriter
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.run import RunSpec

log = logging.getLogger(__name__)
NAMED = 3
"""Number of affected prompts that the log names."""


@dataclass(frozen=True, slots=True)
class FittedPrompts:
    """What became of a file.

    sizes: prompts left, by source.
    affected: number of prompts left out or shortened.
    longest: the manifest's entry about the longest prompt left.
    """

    sizes: tuple[int, ...]
    affected: int
    longest: dict[str, Any]


def fit_prompts(
    spec: RunSpec,
    codec: TextCodec,
    model_path: str,
    path: Path,
    held_out: frozenset[str] = frozenset(),
    known: Mapping[int, int | None] | None = None,
) -> FittedPrompts:
    """Rewrites a file without prompts that are too long; does not touch a file that has none.

    model_path: as for `open_codec`.
    known: as for `PromptLengths`.
    held_out: normalised texts of the held-out prompts. A prompt that is cut to one of them is left out.
    """
    file = PromptFile(path)
    lengths = PromptLengths(spec, codec, model_path, known)
    too_long: dict[int, str] = {}
    measured: dict[int, tuple[Prompt, int]] = {}
    for number, prompt, found in lengths.encoded(file):
        if isinstance(found, TooLongError):
            too_long[number] = prompt.prompt_id
        elif isinstance(found, DataError):
            raise found
        elif prompt.prompt_id == lengths.longest["prompt_id"]:
            measured = {number: (prompt, found)}
    longest = lengths.longest
    sizes = Counter(file.column("source"))
    if too_long:
        fitting = path.with_suffix(".fitting")
        sizes = Counter[int]()
        with PromptWriter(fitting, spec.data.has_images) as writer:
            for number, prompt, tokens in _fitting(
                spec=spec, codec=codec, prompts=file, too_long=too_long, held_out=held_out
            ):
                writer.add(prompt)
                sizes[prompt.source] += 1
                if tokens:
                    measured[number] = prompt, tokens
        longest = {"prompt_id": "", "tokens": 0}
        for _, (prompt, tokens) in sorted(measured.items(), key=lambda item: item[0]):
            longest = longer(longest, prompt, tokens)
    _require_some(spec, path.name, sizes)
    if too_long:
        fitting.replace(path)
        shortened = list(too_long.values())
        named = ", ".join(shortened[:NAMED]) + (", ..." if len(shortened) > NAMED else "")
        log.warning("%s: %d prompts were too long (%s): %s", path.name, len(shortened), spec.data.over_long, named)
    return FittedPrompts(tuple(sizes[source] for source in range(len(spec.data.sources))), len(too_long), longest)


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
    spec: RunSpec, codec: TextCodec, prompts: PromptFile, too_long: Container[int], held_out: frozenset[str]
) -> Iterator[tuple[int, Prompt, int]]:
    """Yields number and prompt of those to keep, and the tokens of those that were cut; 0 for others, measured already.

    too_long: numbers of the prompts that are too long.
    """
    for number, prompt in enumerate(prompts):
        if number not in too_long:
            yield number, prompt, 0
        elif spec.data.over_long != "skip":
            cut = _shortened(spec, codec, prompt)
            if normalise(cut.text) not in held_out:
                yield number, cut, prompt_tokens(spec, codec, cut)


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
