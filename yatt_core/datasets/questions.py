"""The prompt of a row, from whatever the source names: a key, a template, a dialogue, or two responses with a common beginning.

Consumes a row and its source. Produces the prompt's text and messages, and what is learnt from it if the row is a demonstration.
Raises `DataError`, which names the key; the caller names the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.datasets.answers import NO_ANSWERS, Answers, read_answers
from yatt_core.errors import DataError
from yatt_core.json_text import parsed
from yatt_core.prompts.conversations import is_conversation, read_conversation, split_demonstration, transcript
from yatt_core.prompts.dialogues import read_dialogue
from yatt_core.prompts.keys import MISSING, hint, value_at
from yatt_core.prompts.message_forms import SYSTEM, USER
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.responses import Messages, divided, messages_of, reply_of
from yatt_core.row_template import render_row, template_keys
from yatt_core.spec.sections.data import FileSource


@dataclass(frozen=True, slots=True)
class Question:
    """What a row asks, and what it demonstrates.

    text: the question, or the transcript of the messages; empty for a row whose answer is learnt as a whole.
    messages: the conversation; empty for a single question.
    answers: the reference answers.
    reply: the messages of a demonstration.
    """

    text: str
    messages: tuple[Message, ...] = ()
    answers: Answers = NO_ANSWERS
    reply: tuple[Message, ...] = ()


def prompt_keys(source: FileSource) -> tuple[str, ...]:
    """Returns the keys of which a source's prompts are made."""
    if source.prompt_template is not None:
        return template_keys(source.prompt_template)
    if source.prompt_field is not None:
        return (source.prompt_field,)
    return (source.chosen_field, source.rejected_field, source.answer_field)


def read_question(entry: Mapping[str, Any], source: FileSource) -> Question:
    """Returns what a row asks."""
    if source.prompt_template is not None or source.prompt_field is not None:
        return _with_answers(_asked(entry, source), entry, source)
    given = [value_at(entry, key) for key in (source.chosen_field, source.rejected_field)]
    if all(value is None for value in given):
        return _alone(entry, source)
    missing = [
        key for key, value in zip((source.chosen_field, source.rejected_field), given, strict=True) if value is None
    ]
    if missing:
        raise DataError(f"the row has no {missing[0]!r}; expected both responses, {hint(missing[0], entry)}")
    return _with_answers(_in_common(entry, source, given[0], given[1]), entry, source)


def read_tools(entry: Mapping[str, Any], source: FileSource) -> tuple[Mapping[str, Any], ...]:
    """Returns the descriptions of the tools of a row; none if it lacks the key, or the list is empty."""
    if source.tools_field is None:
        return ()
    value = value_at(entry, source.tools_field)
    tools = parsed(value, "[") if isinstance(value, str) and value.strip() else value
    if value is None or value == "":
        return ()
    if not isinstance(tools, list):
        raise DataError(f"{source.tools_field!r} must be a list of descriptions of tools, or the JSON text of one")
    for number, tool in enumerate(tools, start=1):
        described = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
            raise DataError(
                f"{source.tools_field!r}: tool {number} must be an object with a name, such as "
                "{type: function, function: {name, description, parameters}}"
            )
    return tuple(tools)


def _asked(entry: Mapping[str, Any], source: FileSource) -> Question:
    """Returns the prompt under a key, or that of a template."""
    if source.prompt_template is not None:
        key = "prompt_template"
        try:
            value: Any = render_row(source.prompt_template, entry)
        except DataError as error:
            raise DataError(f"prompt_template: {error}") from None
    else:
        key = source.prompt_field or ""
        value = value_at(entry, key, MISSING)
        if value is MISSING:
            raise DataError(
                f"the row has no key {key!r} for the prompt (data.sources prompt_field); {hint(key, entry)}"
            )
    is_list = isinstance(value, list) and not source.rendered
    if not is_list and (not isinstance(value, str) or not value.strip()):
        raise DataError(f"{key!r} must be a non-empty string{'' if source.rendered else ' or a list of messages'}")
    try:
        return _question(value, entry, source)
    except DataError as error:
        raise DataError(f"{key!r}: {error}") from None


def _question(value: Any, entry: Mapping[str, Any], source: FileSource) -> Question:
    if source.rendered:
        return Question(value)
    if isinstance(value, list) or (source.prompt_template is None and is_conversation(value)):
        messages = read_conversation(value)
    elif source.dialogue is not None:
        messages = read_dialogue(value, source.dialogue, may_end_open=True)
    else:
        messages = (Message(USER, value),)
    before, reply = split_demonstration(messages)
    return _of_messages(_with_system(before, entry, source), reply)


def _of_messages(before: Sequence[Message], reply: tuple[Message, ...]) -> Question:
    answers = Answers(reply[-1].content) if reply else NO_ANSWERS
    if len(before) == 1 and before[0] == Message(USER, before[0].content):
        return Question(before[0].content, (), answers, reply)
    return Question(transcript(before), tuple(before), answers, reply)


def _with_system(messages: Sequence[Message], entry: Mapping[str, Any], source: FileSource) -> tuple[Message, ...]:
    """Returns the messages with the row's system message as the first one."""
    system = _system(entry, source)
    if not system or messages[0] == Message(SYSTEM, system):
        return tuple(messages)
    if messages[0].role == SYSTEM:
        raise DataError(
            f"the conversation has a system message of its own, which differs from {source.system_field!r}; expected one"
        )
    return (Message(SYSTEM, system), *messages)


def _system(entry: Mapping[str, Any], source: FileSource) -> str:
    value = None if source.system_field is None else value_at(entry, source.system_field)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{source.system_field!r} is {type(value).__name__}; expected the system message as a string")
    return value if value and value.strip() else ""


def _with_answers(question: Question, entry: Mapping[str, Any], source: FileSource) -> Question:
    """Returns the question with the answers of the row, or the messages under the answer's key."""
    key = source.answer_field
    value = value_at(entry, key)
    reply = _reply(value, question, source)
    if reply and question.reply:
        raise DataError(f"{key!r} has messages of the assistant, and so has the prompt; expected them in one of both")
    if reply:
        return Question(question.text, question.messages, Answers(reply[-1].content), reply)
    answers = read_answers(value, key)
    if answers.first is not None and source.dialogue is not None:
        answers = Answers(answers.first.strip(), answers.others)
    return Question(
        question.text, question.messages, question.answers if answers.first is None else answers, question.reply
    )


def _reply(value: Any, question: Question, source: FileSource) -> Messages:
    """Returns the messages under the answer's key; empty if it has something else."""
    before = question.messages or (Message(USER, question.text),)
    try:
        return reply_of(value, before, source) or ()
    except DataError as error:
        raise DataError(f"{source.answer_field!r}: {error}") from None


def _in_common(entry: Mapping[str, Any], source: FileSource, chosen: Any, rejected: Any) -> Question:
    """Returns the prompt that two responses begin with."""
    try:
        before = divided(chosen, rejected, source).prompt
        if source.rendered:
            return Question(before[0].content)
        return _of_messages(_with_system(before, entry, source), ())
    except DataError as error:
        raise DataError(f"{source.chosen_field!r} and {source.rejected_field!r}: {error}") from None


def _alone(entry: Mapping[str, Any], source: FileSource) -> Question:
    """Returns what a row without a prompt demonstrates: a conversation, or a text that is learnt as a whole."""
    key = source.answer_field
    value = value_at(entry, key)
    if value is None:
        raise DataError(
            f"the row has neither {source.chosen_field!r} and {source.rejected_field!r} nor {key!r} (data.sources "
            f"answer_field), and prompt_field is null; {hint(key, entry)}"
        )
    try:
        messages = messages_of(value, source)
        if messages is not None:
            before, reply = split_demonstration(messages)
            return _of_messages(_with_system(before, entry, source), reply)
    except DataError as error:
        raise DataError(f"{key!r}: {error}") from None
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{key!r} must be a non-empty string or a list of messages")
    if _system(entry, source):
        raise DataError(f"{key!r} is learnt as a whole, so that {source.system_field!r} has no place; leave it out")
    return Question("", (), Answers(value))
