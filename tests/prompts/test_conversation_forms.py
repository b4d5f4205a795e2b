"""Messages in the forms of the field mean the same, what could change their meaning is refused, and transcripts show all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from yatt_core.datasets.questions import read_question
from yatt_core.errors import DataError
from yatt_core.prompts.conversations import (
    is_conversation,
    read_conversation,
    split_demonstration,
    transcript,
)
from yatt_core.prompts.message_forms import role_of
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.responses import divided, messages_of, reply_of
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec.sections.data import JsonlSource

CALL = ToolCall("add", {"a": 1}, "c1")
FUNCTION = {"name": "add", "arguments": {"a": 1}}
PLAIN = (Message("system", "s"), Message("user", "q"), Message("assistant", "a"))


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"role": "developer", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "user", "value": "q"}, {"from": "chatgpt", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "bard", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "model", "value": "a", "weight": None}],
        [
            {"role": "system", "content": "s", "name": None},
            {"role": "user", "content": [{"type": "text", "text": "q"}], "id": "7", "timestamp": 3},
            {"role": "assistant", "content": "a", "tool_calls": [], "model": "m", "weight": 1},
        ],
    ],
)  # fmt: skip
def test_forms_of_the_same_conversation(value: Any) -> None:
    assert read_conversation(value) == PLAIN == read_conversation(json.dumps(value))
    assert is_conversation(value) and is_conversation(json.dumps(value))


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", **FUNCTION}]},
        {"role": "assistant", "content": "", "tool_calls": json.dumps([{"id": "c1", **FUNCTION}])},
        {"role": "assistant", "content": "", "function_call": {"id": "c1", **FUNCTION}},
        {"from": "function_call", "value": json.dumps({"id": "c1", **FUNCTION})},
        {"from": "function_call", "value": json.dumps([{"id": "c1", **FUNCTION}])},
    ],
)
def test_forms_of_the_same_call(item: Any) -> None:
    (message,) = read_conversation([item])
    assert message == Message("assistant", "", calls=(CALL,))


@pytest.mark.parametrize("arguments", [{}, "{}", "", None])
def test_a_call_without_arguments(arguments: Any) -> None:
    (message,) = read_conversation([{"role": "assistant", "tool_calls": [{"name": "now", "arguments": arguments}]}])
    assert message.calls == (ToolCall("now", {}),)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "tool", "name": "add", "tool_call_id": "c1", "content": "3"}, Message("tool", "3", name="add", call_id="c1")),
        ({"role": "tool", "content": ""}, Message("tool", "")),
        ({"role": "function", "name": "add", "content": "3"}, Message("tool", "3", name="add")),
        ({"from": "observation", "value": "3"}, Message("tool", "3")),
        ({"from": "tool", "value": "3"}, Message("tool", "3")),
        ({"role": "assistant", "content": "a", "reasoning_content": "hm"}, Message("assistant", "a", thoughts="hm")),
        ({"role": "assistant", "content": "a", "reasoning": "hm", "thinking": "hm"}, Message("assistant", "a", thoughts="hm")),
        ({"role": "assistant", "content": "a", "weight": 0}, Message("assistant", "a", learnt=False)),
        ({"role": "assistant", "content": "a", "weight": 0.0}, Message("assistant", "a", learnt=False)),
        ({"role": "user", "content": "a", "weight": 0, "name": "Ann"}, Message("user", "a", name="Ann")),
    ],
)  # fmt: skip
def test_results_thoughts_weights_and_names(item: Any, message: Message) -> None:
    assert read_conversation([item]) == (message,)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"role": "user", "content": "a", "train": False}, "the key 'train', which has no meaning here"),
        ({"from": "gpt", "value": "a", "loss": 0}, "'loss', which has no meaning here; write 'weight': 0 if"),
        ({"from": "gpt", "value": "a", "mood": "x"}, "'mood', which has no meaning here; leave it out"),
        ({"role": "user", "content": "a", "tool_calls": [FUNCTION]}, "'tool_calls', but the role user"),
        ({"role": "user", "content": "a", "reasoning": "x"}, "'reasoning', but the role user"),
        ({"from": "human", "content": "a"}, "'from' and 'content'"),
        ({"from": "alpaca", "value": "a"}, "is from 'alpaca'; expected one of system, human"),
        ({"from": "function_call", "value": "add(1)"}, "value of function_call must be JSON text"),
        ({"role": "assistant", "tool_calls": [{"name": "add", "arguments": "1"}]}, "arguments of add must be an object"),
        ({"role": "assistant", "tool_calls": [{"arguments": {}}]}, "call 1: expected {function"),
        ({"role": "assistant", "tool_calls": {"name": "add"}}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": "[1"}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [{"id": 3, **FUNCTION}]}, "id is int"),
        ({"role": "assistant", "content": "a", "reasoning": "x", "thinking": "y"}, "different thoughts in reasoning"),
        ({"role": "assistant", "content": "a", "weight": 0.5}, "weight is 0.5; expected 0 or 1"),
        ({"role": "assistant", "content": "a", "weight": "0"}, "weight is '0'"),
        ({"role": "assistant", "content": ""}, "content must be a non-empty string"),
        ({"role": "user", "content": {"text": "a"}}, "content is dict"),
        ({"role": "user", "content": "a", "name": 3}, "name is int"),
    ],
)  # fmt: skip
def test_what_could_change_a_message_is_refused(item: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"message 2.*{says}"):
        read_conversation([{"role": "user", "content": "q"}, item])


def test_demonstrations_begin_with_the_first_message_of_the_assistant() -> None:
    user = Message("user", "q")
    tool = Message("tool", "3")
    called = Message("assistant", "", calls=(CALL,))
    said = Message("assistant", "a")
    assert split_demonstration((user, called, tool, said)) == ((user,), (called, tool, said))
    assert split_demonstration((user, said, user)) == ((user, said, user), ())
    assert split_demonstration((user, called, tool)) == ((user, called, tool), ())
    for messages, says in (
        ((said,), "begins with the assistant's"),
        ((Message("system", "s"), said), "begins with the assistant's"),
        ((Message("system", "s"),), "ends with the role system"),
        ((user, Message("assistant", "a", learnt=False)), "weight 0"),
    ):
        with pytest.raises(DataError, match=says):
            split_demonstration(messages)


def test_replies_may_repeat_the_prompt() -> None:
    before = PLAIN[:2]
    one = {"role": "assistant", "content": "a"}
    plain = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    source = JsonlSource(kind="jsonl", path="rows.jsonl")
    for value in ([one], [*plain, one], [plain[1], one], json.dumps([*plain, one])):
        assert reply_of(value, before, source) == (Message("assistant", "a"),)
    longer = reply_of([*plain, one, {"role": "user", "content": "x"}, one], before, source)
    assert longer is not None and len(longer) == 3
    for value, says in (
        ([plain[0], one], "not the prompt's"),
        ([{**plain[1], "name": "Ann"}, one], "not the prompt's"),
        ([*plain], "ends with the role user"),
        ([{**one, "weight": 0}], "weight 0"),
    ):
        with pytest.raises(DataError, match=says):
            reply_of(value, before, source)
    for other in ("a", [], 3, ["a", "b"], None):
        assert reply_of(other, before, source) is None


def test_the_prompt_that_is_asked_is_the_one_that_responses_are_learnt_behind() -> None:
    one = {"role": "assistant", "content": "a"}
    turns = [{"role": "user", "content": "q"}, one, {"role": "user", "content": "r"}]
    cases: list[tuple[dict[str, Any], Any, Any]] = [
        ({}, [*turns, one], json.dumps([*turns, {**one, "content": "b"}])),
        ({}, "Is it? Yes", "Is it? No"),
        ({"rendered": True}, "<q>Is it?<a>Yes", "<q>Is it?<a>No"),
        ({"dialogue": {}}, "\n\nHuman: q\n\nAssistant: a", "\n\nHuman: q\n\nAssistant: b"),
    ]
    for keys, chosen, rejected in cases:
        source = JsonlSource(kind="jsonl", path="rows.jsonl", prompt_field=None, **keys)
        both = divided(chosen, rejected, source)
        question = read_question({"chosen": chosen, "rejected": rejected}, source)
        assert (question.messages or (Message("user", question.text),)) == both.prompt
        for value, behind in ((chosen, both.chosen), (rejected, both.rejected)):
            whole = messages_of(value, source)
            assert whole == (*both.prompt, *behind) or value == both.prompt[0].content + behind[0].content


def test_an_empty_system_message_is_none() -> None:
    for empty in (
        {"role": "system", "content": ""},
        {"from": "system", "value": " "},
        {"role": "system", "content": None},
    ):
        assert read_conversation([empty, {"role": "user", "content": "q"}]) == (Message("user", "q"),)
    with pytest.raises(DataError, match="message 2 has the role system"):
        read_conversation([{"role": "user", "content": "q"}, {"role": "system", "content": ""}])
    with pytest.raises(DataError, match="has no messages"):
        read_conversation([{"role": "system", "content": ""}])


def test_transcripts_show_thoughts_calls_and_results() -> None:
    messages = (
        *PLAIN[:2],
        Message("assistant", "", thoughts="hm", calls=(CALL,)),
        Message("tool", "3", name="add"),
        Message("assistant", "It is 3.", calls=(ToolCall("é", {}),)),
    )
    assert transcript(messages) == (
        "system: s\n\nuser: q\n\n"
        'assistant: <think>\nhm\n</think>\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n\n'
        'tool (add): 3\n\nassistant: It is 3.\n<tool_call>{"name": "é", "arguments": {}}</tool_call>'
    )


@pytest.mark.parametrize(
    ("item", "role"),
    [
        ({"role": "developer", "content": "s"}, "system"),
        ({"role": "assistant", "from": "human", "content": "a"}, "assistant"),
        ({"role": None, "from": "bard", "value": "a"}, "assistant"),
        ({"from": "function_call", "value": "{}"}, "assistant"),
        ({"role": "human", "content": "q"}, "human"),
        ({"from": "prompter", "value": "q"}, "prompter"),
        ({"role": 1, "content": "q"}, None),
        ({"content": "q"}, None),
    ],
)
def test_the_role_of_a_message_is_the_one_that_is_read(item: dict[str, Any], role: str | None) -> None:
    assert role_of(item) == role
