"""Thoughts in a column beside the response: learnt without them, a model answers without thinking.

Consumes a table and the key of the response. Raises `ConfigurationError`, since a spec names one key for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.starter.recognition.table import Table, is_text, parsed, text_of, value_of
from yatt_core.errors import ConfigurationError

THOUGHTS = (
    "reasoning", "reasoning_content", "thinking", "thoughts", "thought", "complex_cot", "cot", "chain_of_thought",
    "thinking_trajectory", "thinking_trajectories", "reasoning_trace", "reasoning_traces", "thinking_trace", "thought_process",
    "scratchpad", "deepseek_reasoning", "deepseek_thinking_trajectory", "r1_reasoning", "generated_reasoning",
)  # fmt: skip
FORM = "a response '<think>\\n...\\n</think>\\n\\n...', or a message of the assistant that has 'content' and 'reasoning_content'"
"""How a row has thoughts that are learnt with the response."""
MARKS = ("<think>", "<|begin_of_thought|>", "<thinking>", "<reasoning>")
"""With what responses begin that have their thoughts already."""
OF_MESSAGES = ("reasoning_content", "reasoning", "thinking")


def thoughts_key(table: Table, response: str) -> str | None:
    """Returns the key of thoughts that some response lacks; None if there is none."""
    keys = (key for key in table.all(*THOUGHTS) if key != response)
    return next((key for key in keys if any(_are_apart(row, key, response) for row in table.rows)), None)


def refuse_thoughts(table: Table, response: str, option: str) -> None:
    """Raises `ConfigurationError` if the rows have thoughts that lead to the responses, and would not be learnt.

    option: what, with the key of the responses behind it, decides that they are learnt alone.
    """
    key = thoughts_key(table, response)
    if key is not None:
        raise ConfigurationError(
            f"the rows have thoughts under {key!r} beside the responses under {response!r}, and a source names one key for "
            f"both; expected {FORM} ({option} {response} learns the responses without thoughts)"
        )


def _are_apart(row: Mapping[str, Any], key: str, response: str) -> bool:
    """Returns whether a row has thoughts, and a response without them."""
    thoughts = parsed(value_of(row, key))
    learnt = value_of(row, response)
    text = text_of(learnt)
    if any(mark in text for mark in MARKS) or _have_thoughts(parsed(learnt)):
        return False
    return any(
        is_text(one) and one.strip() not in text for one in (thoughts if isinstance(thoughts, list) else [thoughts])
    )


def _have_thoughts(messages: Any) -> bool:
    listed = messages if isinstance(messages, list) else []
    return any(isinstance(one, Mapping) and any(one.get(key) for key in OF_MESSAGES) for one in listed)
