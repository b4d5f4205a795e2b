"""The syntax of tool calls, and the calculator."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest

from yatt_core.prompts.reading import Reading, reading_of
from yatt_core.prompts.tool_calls import KINDS, ToolAnswer, ToolCall, last_turn, read_call, split_turns, write_result
from yatt_core.spec.sections.tools import ToolsSpec
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


def tagged(function: str, **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={function}>\n{inside}</function>\n</tool_call>"


def keyed(function: str, **parameters: str) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in parameters.items())
    return f"<tool_call>{function}\n{''.join(pairs)}</tool_call>"


WRITERS = {"function_tags": tagged, "argument_tags": keyed}


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("False", False), ("None", None), ("true", True), ("2", 2), ("a b", "a b")]
)
def test_values_that_a_template_wrote_as_text_come_back(text: str, value: object) -> None:
    call = read_call(tagged("f", x=text), Reading(syntax="function_tags"))
    assert call == ToolCall("f", {"x": value})


@pytest.mark.parametrize("syntax", WRITERS)
@pytest.mark.parametrize("text", ["2024", "true", "null", "[1]", "1e3", '"quoted"', "None", "NaN"])
def test_a_text_by_the_tools_schema_stays_as_it_is_written(syntax: str, text: str) -> None:
    function = {"name": "f", "function": "calculator", "parameters": {"properties": {"x": {"type": "string"}, "y": {}}}}
    tools = ToolsSpec.model_validate({"functions": [function]})
    reading = Reading(syntax=syntax, texts=tuple(tools.text_parameters))
    call = read_call(WRITERS[syntax]("f", x=text, y="7"), reading)
    assert call == ToolCall("f", {"x": text, "y": 7})
    assert read_call(WRITERS[syntax]("g", x="7"), reading) == ToolCall("g", {"x": 7}), "another tool's parameter"
    assert reading_of(json.loads(json.dumps(asdict(reading)))) == reading


@pytest.mark.parametrize("syntax", WRITERS)
@pytest.mark.parametrize("text", ["a<parameter=x>b", "a<arg_key>x</arg_key>", "<arg_value>", "no number: NaN"])
def test_tags_in_a_value_are_part_of_it(syntax: str, text: str) -> None:
    assert read_call(WRITERS[syntax]("f", code=text, y="7"), Reading(syntax=syntax)) == ToolCall(
        "f", {"code": text, "y": 7}
    )


@pytest.mark.parametrize("syntax", WRITERS)
def test_many_tags_are_read_in_linear_time(syntax: str) -> None:
    many = {f"k{number}": "x" * 20 for number in range(40_000)}
    started = time.perf_counter()
    call = read_call(WRITERS[syntax]("f", **many), Reading(syntax=syntax))
    assert isinstance(call, ToolCall) and len(call.arguments) == len(many)
    assert time.perf_counter() - started < 5


DEEP = "[" * 400 + "]" * 400


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("json_in_tags", f'<tool_call>{{"name": "f", "arguments": {{"x": {DEEP}}}}}</tool_call>'),
        ("bare_json", f'{{"name": "f", "parameters": {{"x": {DEEP}}}}}'),
        ("bare_json", f'<|python_tag|>{{"name": "f", "parameters": {{"x": {DEEP}}}}}'),
        ("function_tags", tagged("f", x=DEEP)),
        ("argument_tags", keyed("f", x=DEEP)),
        ("marked_list", f'[TOOL_CALLS]f[ARGS]{{"x": {DEEP}}}'),
        ("gemma", f"<|tool_call>call:f{{x:{DEEP}}}<tool_call|>"),
    ],
)
def test_no_form_of_calls_nests_deeper_than_the_bound(syntax: str, text: str) -> None:
    call = read_call(text, Reading(syntax=syntax))
    assert not isinstance(call, ToolCall) or call.arguments == {"x": DEEP}, "refused, or a text"


@pytest.mark.parametrize("written", ["run<｜tool▁sep｜>{}", "function<｜tool▁sep｜>run\n```json\n{}\n```"])
def test_a_deepseek_call_may_have_fences_in_its_arguments(written: str) -> None:
    arguments = {"code": "```python\nprint(1)\n```"}
    text = f"<｜tool▁call▁begin｜>{written.format(json.dumps(arguments))}<｜tool▁call▁end｜>"
    assert read_call(text, Reading(syntax="fenced_json")) == ToolCall("run", arguments)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "abcDEF123"}]',
        '[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{"x": 1}',
    ],
)
def test_a_call_keeps_the_id_that_the_policy_gave_it(text: str) -> None:
    reading = Reading(syntax="marked_list")
    assert read_call(text, reading) == ToolCall("f", {"x": 1}, "abcDEF123")
    assert read_call(text.replace("abcDEF123", "<s>"), reading) == ToolCall("f", {"x": 1}), (
        "no template takes such an id"
    )


def test_arguments_cannot_rename_a_call() -> None:
    call = read_call('[TOOL_CALLS]f[ARGS]{}, "name": "other"', Reading(syntax="marked_list"))
    assert isinstance(call, ToolAnswer) and call.error.startswith("malformed: there is no JSON")


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
