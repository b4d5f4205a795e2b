"""Encodes a prompt as the run will: as it is given to the model, to its teacher, and with the responses it learns from.

Consumes the spec, the run's codec and a prompt. Produces its number of tokens. Raises `DataError` with source, file and row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yatt_core.datasets.sources import source_place
from yatt_core.errors import DataError, TooLongError
from yatt_core.prompts.codec import TextCodec, encode_privileged, encode_question
from yatt_core.prompts.rows import check_responses
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.run import RunSpec


def prompt_tokens(spec: RunSpec, codec: TextCodec, prompt: Prompt) -> int:
    """Returns the number of tokens of a prompt as it is given to the model, or to its teacher if that sees more.

    Raises what `encode_prompt` and `check_responses` raise, with the place of the prompt's source.
    """
    try:
        # Of a text alone, all but the first token is learnt; `check_responses` encodes it.
        tokens = 1 if prompt.is_text_alone else len(encode_question(prompt, codec))
        distillation = spec.algorithm.distillation
        if distillation is not None and distillation.privileged is not None:
            tokens = max(tokens, len(encode_privileged(prompt, distillation.privileged.template, codec)))
        check_responses(spec, codec, prompt)
    except DataError as error:
        named = "" if prompt.prompt_id in str(error) else f"prompt {prompt.prompt_id} "
        placed = type(error)(f"{source_place(spec.data, prompt.source)}: {named}{error}")
        if isinstance(placed, TooLongError) and isinstance(error, TooLongError):
            placed.tokens = error.tokens
        raise placed from None
    return tokens


def longer(longest: Mapping[str, Any], prompt: Prompt, tokens: int) -> dict[str, Any]:
    """Returns the manifest's entry about the longest prompt after another prompt; of equal ones, the first."""
    return {"prompt_id": prompt.prompt_id, "tokens": tokens} if tokens > longest["tokens"] else dict(longest)
