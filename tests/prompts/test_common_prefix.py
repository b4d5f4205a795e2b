"""What two responses begin with: messages, and texts that end neither in a space nor within a word."""

from __future__ import annotations

import pytest

from yatt_core.errors import DataError
from yatt_core.prompts.common_prefix import common_messages, common_text
from yatt_core.prompts.dialogues import has_turns, read_dialogue
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec.sections.data import DialogueMarks

MARKS = DialogueMarks()


def talk(*texts: str) -> list[Message]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(roles[text[0]], text) for text in texts]


@pytest.mark.parametrize(
    ("chosen", "rejected", "count"),
    [
        (["u", "a1"], ["u", "a2"], 1),
        (["s", "u", "a1"], ["s", "u", "a2"], 2),
        (["u", "a", "u2", "a1"], ["u", "a", "u2", "a2"], 3),
        (["u", "a1", "u2", "a3"], ["u", "a2", "u2", "a3"], 1),
        (["u", "a", "u1", "a1"], ["u", "a", "u2", "a2"], 1),
        (["u", "a"], ["u", "a"], 1),
        (["u", "a", "u2", "a1"], ["u", "a"], 1),
        (["u", "a", "t1", "a1"], ["u", "a", "t2", "a1"], 1),
    ],
)
def test_the_prompt_ends_where_both_answer(chosen: list[str], rejected: list[str], count: int) -> None:
    assert common_messages(talk(*chosen), talk(*rejected)) == count


def test_calls_make_a_difference() -> None:
    one, other = (Message("assistant", "", calls=(ToolCall("f", {"x": x}),)) for x in (1, 2))
    user, end = talk("u", "a")
    assert common_messages([user, one, end], [user, other, end]) == 1


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [(["u1", "a"], ["u2", "a"]), (["s", "a1"], ["s", "a2"]), (["a1"], ["a2"]), (["u"], ["u"]), ([], ["u", "a"])],
)
def test_conversations_without_a_common_prompt_are_refused(chosen: list[str], rejected: list[str]) -> None:
    with pytest.raises(DataError):
        common_messages(talk(*chosen), talk(*rejected))


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        ("The sky is", " blue.", " green."),
        ("The sky is", " blue.", " bluish."),
        ("Q: 1+1?\nA:", " 2", " 3"),
        ("Q: 1+1?\nA:\n", "2", "3"),
        ("It is", " 3.14", " 3.15"),
        ("It is", " 1,200", " 1,300"),
        ("It is", " 1.5", " 1.x"),
        ("End.", " Yes", " No"),
        ("Say", " cafe\u0301 x", " cafe y"),
        ("Say", " \U0001f469\u200d\U0001f680", " \U0001f469\u200d\U0001f3a8"),
        ("Say", " \U0001f44d\U0001f3fb", " \U0001f44d\U0001f3ff"),
        ("Say", " \U0001f1e9\U0001f1ea", " \U0001f1e9\U0001f1f0"),
        ("你", "好", "们"),
        ("A", "   b", "   c"),
        ("\n\nHuman: Hi\n\nAssistant:", " Of course", " Maybe."),
    ],
)
def test_the_prompt_of_texts(prompt: str, chosen: str, rejected: str) -> None:
    for first, second in ((chosen, rejected), (rejected, chosen)):
        assert (prompt + first)[: common_text(prompt + first, prompt + second)] == prompt


@pytest.mark.parametrize(
    ("chosen", "rejected", "says"),
    [
        ("", "", "no beginning"),
        ("blue", "blush", "no beginning"),
        ("  a", "  b", "no beginning"),
        ("a b", "a b", "beginning of the other"),
        ("a b", "a b ", "beginning of the other"),
    ],
)
def test_texts_without_a_common_prompt_are_refused(chosen: str, rejected: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        common_text(chosen, rejected)


def test_the_prompt_of_long_texts_is_found_at_once() -> None:
    text = "word " * 400_000
    assert common_text(f"{text}a", f"{text}b") == len(text) - 1


def test_dialogues() -> None:
    read = read_dialogue("\n\nHuman: a\n\nAssistant: b\n\nHuman:c \n\nAssistant:  d\n", MARKS)
    assert [(message.role, message.content) for message in read] == [
        ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"),
    ]  # fmt: skip
    assert read_dialogue("Be brief.\n\nHuman: a\n\nAssistant: b", MARKS)[0] == Message("system", "Be brief.")
    assert len(read_dialogue("Human: a\n\nAssistant: b", MARKS)) == 2
    assert read_dialogue("\n\nHuman: a\n\nAssistant:", MARKS)[-1] == Message("assistant", "")
    assert [m.role for m in read_dialogue("\n\nHuman: a\n\nAssistant:", MARKS, may_end_open=True)] == ["user"]
    with pytest.raises(DataError, match="ends with the user's turn"):
        read_dialogue("\n\nHuman: a", MARKS)
    assert has_turns("\n\nHuman: a", MARKS) and not has_turns("Human beings", MARKS)
