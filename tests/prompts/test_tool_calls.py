"""The syntax of tool calls, and the calculator."""

from __future__ import annotations

import pytest

from yatt_core.prompts.tool_calls import KINDS, ToolAnswer, ToolCall, last_turn, read_call, split_turns, write_result
from yatt_core.tools.builtin import calculator


def test_a_call_within_other_text() -> None:
    text = 'Let me see.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 < 3"}}\n</tool_call>'
    assert read_call(text) == ToolCall("calculator", {"expression": "2 < 3"})
    assert read_call("4") is None
    assert read_call("</tool_call> is no call") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>{}</tool_call>", 'a call is {"name": "...", "arguments": {...}}'),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "a call is"),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', "a call is"),
        ("<tool_call>[1, 2]</tool_call>", "a call is"),
        ("<tool_call>f(1)</tool_call>", "there is no JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "there is no JSON"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100 + "]" * 100 + "}}</tool_call>", "there is no JSON"),
        ("<tool_call>null</tool_call>", "a call is"),
        ('<tool_call>{"name": "f", "arguments": {}}', "a call ends with </tool_call>"),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2, "one call a turn, not 2"),
    ],
)
def test_a_malformed_call_becomes_an_error_answer(text: str, reason: str) -> None:
    answer = read_call(text)
    assert isinstance(answer, ToolAnswer)
    assert answer.error.startswith(f"malformed: {reason}")
    assert answer.text.startswith(f"error: {reason}")
    assert answer.error.partition(":")[0] in KINDS


def test_turns_of_a_text() -> None:
    text = "a<tool_call>x</tool_call>" + write_result("1") + "b" + write_result("2") + "c"
    assert split_turns(text) == (["a<tool_call>x</tool_call>", "b", "c"], ["1", "2"])
    assert last_turn(text) == "c"
    assert split_turns("only") == (["only"], [])
    assert last_turn("only") == "only"
    assert last_turn("ends" + write_result("1")) == ""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37+58", "95"),
        (" (1 + 2) * -3", "-9"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("2 ** 70", str(2**70)),
        ("7 // 2 % 2", "1"),
        ("+.5", "0.5"),
    ],
)
def test_the_calculator(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression", ["", "1 +", "x", "abs(1)", "'a' * 3", "True", "1 < 2", "1j", "(-8) ** .5", "[1]"]
)
def test_the_calculator_accepts_only_numbers(expression: str) -> None:
    with pytest.raises(ValueError, match=r"no expression|has numbers|no real number"):
        calculator(expression)
