"""Measures every prompt while the inputs are built, so that one that does not fit is reported before it is drawn.

Consumes the spec, the run's codec and the files of prompts. Produces the longest prompt for the manifest,
against which later changes of the spec are checked. Raises `DataError`, which names source, file and row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from yatt_core.datasets.sources import first_prompts
from yatt_core.errors import ConfigurationError, DataError, TooLongError
from yatt_core.input_building.lengths import PromptLengths
from yatt_core.inputs.manifest import LONGEST
from yatt_core.problems import LISTED, Problems
from yatt_core.prompts.codec import TextCodec, longest_prompt, open_codec, positions
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder

FIRST_PROMPTS = 200
"""Number of prompts of each source that are encoded before anything is started."""


def check_prompts(
    spec: RunSpec,
    codec: TextCodec,
    model_path: str,
    files: Iterable[PromptFile | Sequence[Prompt]],
    known: Mapping[int, int | None] | None = None,
) -> dict[str, Any]:
    """Finds all prompts' lengths as for generation; returns id and tokens of the longest (the first, if several).

    model_path: as for `open_codec`.
    known: as for `PromptLengths`, of the first file.

    Raises `DataError` for prompts that are too long or do not match their images. It names the first ones, and the
    values of the spec with which all would fit.
    """
    problems = Problems()
    refused = 0
    most = 0
    with problems.noting():
        longest_prompt(spec, model_path)
    listed = 0 if problems else LISTED  # without any room, every prompt would be named
    lengths = PromptLengths(spec, codec, model_path, known)
    for file in files:
        for _, _, found in lengths.encoded(file):
            if isinstance(found, DataError):
                refused += 1
                most = max(most, found.tokens if isinstance(found, TooLongError) else 0)
                if refused <= listed:
                    problems.note(found)
        lengths.forget_bounds()
    if refused > listed > 0:
        problems.note(DataError(f"data.sources: {refused - LISTED:,} more prompts do not fit either"))
    if most:
        problems.note(DataError(f"the longest prompt has {most} tokens; {room_for(spec, model_path, most)}"))
    problems.raise_any()
    return lengths.longest


def check_first_prompts(spec: RunSpec) -> None:
    """Raises as `check_prompts` does for the first prompts of every source, if the model's tokenizer exists already."""
    if spec.data.over_long != "refuse" or not (spec.virtual or isinstance(spec.model, GivenFolder)):
        return
    model_path = str(Path(spec.model.path).resolve()) if isinstance(spec.model, GivenFolder) else ""
    codec = open_codec(spec, model_path, roomless=True)
    check_prompts(spec, codec, model_path, [first_prompts(spec.data, spec.seed, FIRST_PROMPTS)])


def room_for(spec: RunSpec, model_path: str, tokens: int) -> str:
    """Returns the values of the spec that make room for a prompt of so many tokens."""
    changes = []
    known = positions(spec, model_path)
    if tokens > spec.data.max_prompt_tokens:
        changes.append(f"data.max_prompt_tokens: {tokens} or more")
    if known is not None and tokens + spec.rollout.max_response_tokens > known:
        results = spec.rollout.max_response_tokens - spec.rollout.max_new_tokens
        room = known - tokens - results
        if room < 1:
            return f"no response fits after it into the model's {known} positions; shorten it, or use data.over_long"
        changes.append(f"rollout.max_new_tokens: {room} or less")
    return f"to fit it, set {' and '.join(changes)}; or use data.over_long"


def check_longest(spec: RunSpec, model_path: str, manifest: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if a spec leaves less room than the longest prompt of the inputs needs.

    Inputs without this record pass.
    """
    recorded = manifest.get(LONGEST)
    if recorded is not None and recorded["tokens"] > (room := longest_prompt(spec, model_path)):
        raise ConfigurationError(
            f"data.max_prompt_tokens: prompt {recorded['prompt_id']} of the run's inputs has {recorded['tokens']} "
            f"tokens; the maximum is {room} (by this key and by the model's positions minus rollout.max_new_tokens "
            "and tool results)"
        )
