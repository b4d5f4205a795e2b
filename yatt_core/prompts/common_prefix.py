"""What two sequences begin with in common, and two responses in particular: pure functions, in linear time.

Consumes texts, tokens or messages. Produces the length of their common beginning, or of the prompt that two responses contain.
Raises `DataError` for responses without a common prompt.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from yatt_core.errors import DataError
from yatt_core.prompts.message_forms import ASSISTANT, SYSTEM
from yatt_core.prompts.prompt import Message

_JOINER = "\u200d"
_VARIANTS = "\ufe0e\ufe0f"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the number of values with which both begin."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(place for place in range(most) if one[place] != other[place])


def same_message(message: Message, other: Message) -> bool:
    """Returns whether two messages say the same; the ids of results and what is learnt make no difference."""
    return (message.role, message.content, message.thoughts, message.calls, message.name) == (
        other.role,
        other.content,
        other.thoughts,
        other.calls,
        other.name,
    )


def common_messages(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Returns the number of messages that are the prompt of both conversations.

    The prompt is the longest common beginning that both conversations continue with a message of the assistant.
    """
    for messages in (chosen, rejected):
        if not messages or messages[-1].role != ASSISTANT:
            raise DataError("expected conversations that end with the assistant's message")
    most = min(len(chosen), len(rejected)) - 1
    same = next((place for place in range(most) if not same_message(chosen[place], rejected[place])), most)
    for count in range(same, 0, -1):
        if chosen[count].role == rejected[count].role == ASSISTANT and chosen[count - 1].role != SYSTEM:
            return count
    raise DataError("the two conversations have no prompt in common; expected the same first messages in both")


def common_text(chosen: str, rejected: str) -> int:
    """Returns the number of characters that are the prompt of both texts.

    The prompt is the common beginning without what is only part of a word, number or character at its end, and without
    spaces there, as TRL takes it, which moves back by one space and looks at no words.
    """
    end = common_length(chosen, rejected)
    while end and (chosen[end - 1] == " " or _within_a_word(chosen, end) or _within_a_word(rejected, end)):
        end -= 1
    if not chosen[:end].strip():
        raise DataError("the two texts have no beginning in common; expected the same prompt in both")
    if not chosen[end:].strip() or not rejected[end:].strip():
        raise DataError(
            "one of the two texts is the beginning of the other; expected a response behind the prompt in both"
        )
    return end


def _within_a_word(text: str, place: int) -> bool:
    """Returns True if a word, a number or a character that consists of several goes on at a place of a text."""
    if not 0 < place < len(text):
        return False
    last = text[place - 1]
    following = text[place]
    if (
        unicodedata.category(following).startswith("M")
        or following in _JOINER + _VARIANTS
        or ord(following) in _SKIN_TONES
    ):
        return True
    if last == _JOINER or (ord(last) in _FLAG_LETTERS and ord(following) in _FLAG_LETTERS):
        return True
    if last in ".,":
        return following.isdigit() and text[place - 2 : place - 1].isdigit()
    if last.isdigit() and following in ".,":
        return text[place + 1 : place + 2].isdigit()
    return _is_of_a_word(last) and _is_of_a_word(following)


def _is_of_a_word(character: str) -> bool:
    """Returns True for characters of words that have spaces between them, unlike those of Chinese or Japanese."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in ("W", "F")
