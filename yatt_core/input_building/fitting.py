"""Encodes every prompt once while the inputs are built, so that one that does not fit is reported before it is drawn.

Consumes the spec, the model's folder and the files of prompts. Produces the longest prompt for the manifest,
against which later changes of the spec are checked. Raises `DataError`, which names source, file and row.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.manifest import LONGEST
from yatt_core.prompts.codec import longest_prompt, open_codec
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import ReasoningGymSource

log = logging.getLogger(__name__)
PROMPTS_PER_WORD = 100_000
"""Number of prompts encoded between two progress log lines."""


def check_prompts(spec: RunSpec, model_path: str, files: Iterable[Iterable[Prompt]]) -> dict[str, Any]:
    """Encodes all prompts as for generation; returns id and number of tokens of the longest (the first, if several).

    model_path: as for `open_codec`.

    Raises what `open_codec` raises, and `DataError` for a prompt that is too long or does not match its images.
    """
    codec = open_codec(spec, model_path)
    longest: dict[str, Any] = {"prompt_id": "", "tokens": 0}
    for count, prompt in enumerate(itertools.chain.from_iterable(files), start=1):
        try:
            tokens = len(codec.encode_prompt(prompt.text, prompt.prompt_id, len(prompt.media)))
        except DataError as error:
            raise DataError(f"{_place(spec, prompt.source)}: {error}") from None
        if tokens > longest["tokens"]:
            longest = {"prompt_id": prompt.prompt_id, "tokens": tokens}
        if count % PROMPTS_PER_WORD == 0:
            log.info("%s prompts fit", f"{count:,}")
    return longest


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


def _place(spec: RunSpec, number: int) -> str:
    """Returns the key of a source in the spec, with its file or task."""
    source = spec.data.sources[number]
    return f"data.sources.{number} ({source.task if isinstance(source, ReasoningGymSource) else source.path})"
