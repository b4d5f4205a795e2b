"""Tokens of prompts and responses as arrays: checks of their number, the end of a response, and its text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

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


def dropped_tokens(tokenizer: Any, kept: Collection[str]) -> frozenset[int] | None:
    """Returns the special tokens that are no part of a text; None if that is all of them.

    kept: strings that are part of it, and so are the special tokens in them.
    """
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids)
    special |= {token for token, described in added.items() if described.special}
    spelled = {token: str(added[token].content) for token in special if token in added}
    dropped = {token for token in special if not any(spelled.get(token, "\0") in text for text in kept)}
    return None if dropped == special else frozenset(dropped)


def decoded(tokenizer: Any, tokens: Sequence[int], dropped: Collection[int] | None) -> str:
    """Returns the text of tokens, without those that `dropped_tokens` returned."""
    if dropped is None:
        return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    kept = [token for token in tokens if token not in dropped]
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
