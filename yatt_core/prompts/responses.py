"""The responses in a row, and the prompt that they contain: read in one way for what is asked and for what is learnt.

Consumes the values of a row and its source. Produces messages. Raises `DataError`; the caller names the row and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import DataError
from yatt_core.prompts.common_prefix import common_messages, common_text
from yatt_core.prompts.conversations import behind, is_conversation, read_conversation
from yatt_core.prompts.dialogues import has_turns, read_dialogue
from yatt_core.prompts.message_forms import ASSISTANT, USER
from yatt_core.prompts.prompt import Message
from yatt_core.spec.sections.data import FileSource

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Divided:
    """Two responses that contain their prompt.

    prompt: what both begin with.
    chosen, rejected: what follows it in each.
    """

    prompt: Messages
    chosen: Messages
    rejected: Messages


def messages_of(value: Any, source: FileSource) -> Messages | None:
    """Returns the messages of a value; None for a text that is no dialogue."""
    if source.rendered:
        return None
    if isinstance(value, list) or is_conversation(value):
        return read_conversation(value)
    if isinstance(value, str) and source.dialogue is not None:
        return read_dialogue(value, source.dialogue)
    return None


def divided(chosen: Any, rejected: Any, source: FileSource) -> Divided:
    """Returns two responses without the prompt that both begin with."""
    first = messages_of(chosen, source)
    second = messages_of(rejected, source)
    if first is not None and second is not None:
        count = common_messages(first, second)
        return Divided(first[:count], first[count:], second[count:])
    if isinstance(chosen, str) and isinstance(rejected, str) and first is None and second is None:
        count = common_text(chosen, rejected)
        texts = (USER, chosen[:count]), (ASSISTANT, chosen[count:]), (ASSISTANT, rejected[count:])
        return Divided(*((Message(role, text),) for role, text in texts))
    raise DataError("expected two strings or two lists of messages")


def reply_of(value: Any, before: Sequence[Message], source: FileSource) -> Messages | None:
    """Returns the messages of a response, without those of its prompt; None for a value that has no messages.

    before: the prompt's messages, which the response may repeat.
    """
    if source.rendered:
        return None
    if isinstance(value, str) and source.dialogue is not None and has_turns(value, source.dialogue):
        return behind(read_dialogue(value, source.dialogue), before)
    return behind(read_conversation(value), before) if is_conversation(value) else None
