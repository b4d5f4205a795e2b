"""Prompts and responses as conversations."""

from __future__ import annotations

import json

import pytest

from ops.presentation.conversation import prompt_messages, response_messages
from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.tool_calls import RESULT, RESULT_END


def test_a_chat_is_shown_message_by_message() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert [(each.role, each.text) for each in prompt_messages(json.dumps(chat))] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]


@pytest.mark.parametrize("text", ["Hello", "[1, 2] is a list", "[1, 2]", '[{"role": "user"}]', "[" * 100_000, ""])
def test_any_other_prompt_is_one_message(text: str) -> None:
    assert [(each.role, each.text) for each in prompt_messages(text)] == [("user", text)]


def test_a_response_with_tools_is_shown_turn_by_turn() -> None:
    text = (
        f'<think>a sum</think>Let me see.\n{CALL}{{"name": "calculator"}}{CALL_END}\n'
        f"{RESULT}7{RESULT_END}\nIt is 7.{CALL} cut"
    )
    assert [(each.role, each.text) for each in response_messages(text)] == [
        ("thinking", "a sum"),
        ("assistant", "Let me see."),
        ("tool call", '{"name": "calculator"}'),
        ("tool result", "7"),
        ("assistant", f"It is 7.{CALL} cut"),
    ]


@pytest.mark.parametrize("text", ["plain", "", "\n", "</think> only an end"])
def test_a_response_without_tags_is_one_part(text: str) -> None:
    assert [(each.role, each.text) for each in response_messages(text)] == [("assistant", text)]


def test_a_response_with_many_unclosed_tags_is_read_in_linear_time() -> None:
    """One scan to the end of the text for each tag would take hours."""
    text = "<think>" * 500_000 + f"{CALL}a{CALL_END}" + CALL * 500_000
    parts = response_messages(text)
    assert [(each.role, len(each.text)) for each in parts] == [
        ("assistant", 7 * 500_000),
        ("tool call", 1),
        ("assistant", len(CALL) * 500_000),
    ]
