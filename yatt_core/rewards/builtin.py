"""Reward functions included in YATT, each an entry point of the group `yatt.rewards`.

A reward function takes a prompt, a response's text and its options, and returns a finite number.
"""

from __future__ import annotations

import hashlib

from yatt_core.errors import DataError
from yatt_core.prompts.stream import Prompt
from yatt_core.prompts.tool_calls import last_turn


def exact_match(prompt: Prompt, response: str, case_sensitive: bool = True) -> float:
    """Returns 1 if the response equals the reference answer, ignoring surrounding white space, else 0.

    If the reference answer demonstrates tool calls, only the text after the last result is compared. Raises
    `DataError` if there is no reference answer.
    """
    if prompt.answer is None:
        raise DataError("the prompt has no reference answer to compare with")
    expected, given = last_turn(prompt.answer).strip(), response.strip()
    if not case_sensitive:
        expected, given = expected.casefold(), given.casefold()
    return float(expected == given)


def virtual_score(prompt: Prompt, response: str) -> float:
    """Returns a substitute for a judgement: a hash of prompt id and response, one of 0.0, 0.1 ... 0.9."""
    digest = hashlib.sha256(f"{prompt.prompt_id}\0{response}".encode()).digest()
    return int.from_bytes(digest[:8], "little") * 10 // 2**64 / 10
