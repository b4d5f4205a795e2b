"""Tokens of prompts and responses as arrays: checks of their number, and the end of a response."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from yatt_core.errors import DataError, TooLongError
from yatt_core.protocols.generation import Int32


def checked(tokens: Sequence[int], longest: int, prompt_id: str, text: str, shown: str = "") -> Int32:
    """Returns the tokens as an array. Raises `DataError` if there are none, `TooLongError` if there are too many.

    shown: for the message, a phrase that states how many of the tokens are taken by images.
    """
    if len(tokens) > longest:
        error = TooLongError(
            f"prompt {prompt_id or repr(text[:60])} has {len(tokens)} tokens{shown}; at most {longest} fit "
            "(data.max_prompt_tokens, and the model's positions minus rollout.max_new_tokens)"
        )
        error.tokens = len(tokens)
        raise error
    if not tokens:
        raise DataError(f"prompt {prompt_id or repr(text[:60])} has no tokens")
    return np.array(tokens, dtype=np.int32)


def without_stop(tokens: Sequence[int] | Int32, stop_tokens: Sequence[int]) -> list[int]:
    """Returns a response's tokens without the stop token at its end, if it has one."""
    ids = [int(token) for token in tokens]
    return ids[:-1] if ids and ids[-1] in stop_tokens else ids
