"""What two responses begin with in common, and texts that are dialogues: pure functions, in linear time.

Consumes responses that contain their prompt, as texts or messages. Produces the length of the prompt, and the messages of a
dialogue. Raises `DataError` for responses without a common prompt, and for texts that are no dialogue.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol

from yatt_core.errors import DataError
from yatt_core.prompts.message_forms import ASSISTANT, SYSTEM, USER
from yatt_core.prompts.prompt import Message

_JOINER = "\u200d"
_VARIANTS = "\ufe0e\ufe0f"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)


class TurnMarks(Protocol):
    """What turns begin with in a dialogue."""

    @property
    def user(self) -> str:
        """Before a turn of the user."""

    @property
    def assistant(self) -> str:
        """Before a turn of the assistant."""


def common_messages(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Returns the number of messages that are the prompt of both conversations.

    The prompt is the longest common beginning that both conversations continue with a message of the assistant.
    """
    for messages in (chosen, rejected):
        if not messages or messages[-1].role != ASSISTANT:
            raise DataError("expected conversations that end with the assistant's message")
    most = min(len(chosen), len(rejected)) - 1
    same = next((place for place in range(most) if not _equal(chosen[place], rejected[place])), most)
    for count in range(same, 0, -1):
        if chosen[count].role == rejected[count].role == ASSISTANT and chosen[count - 1].role != SYSTEM:
            return count
    raise DataError("the two conversations have no prompt in common; expected the same first messages in both")


def common_text(chosen: str, rejected: str) -> int:
    """Returns the number of characters that are the prompt of both texts.

    The prompt is the common beginning without what is only part of a word, number or character at its end, and without
    spaces there, as TRL takes it, which moves back by one space and looks at no words.
    """
    most = min(len(chosen), len(rejected))
    end = next((place for place in range(most) if chosen[place] != rejected[place]), most)
    while end and (chosen[end - 1] == " " or _within_a_word(chosen, end) or _within_a_word(rejected, end)):
        end -= 1
    if not chosen[:end].strip():
        raise DataError("the two texts have no beginning in common; expected the same prompt in both")
    if not chosen[end:].strip() or not rejected[end:].strip():
        raise DataError(
            "one of the two texts is the beginning of the other; expected a response behind the prompt in both"
        )
    return end


def read_dialogue(text: str, marks: TurnMarks, may_end_open: bool = False) -> tuple[Message, ...]:
    """Returns the messages of a text that is a dialogue; text before the first mark is a system message.

    may_end_open: whether the dialogue may end with the user's turn, or with a mark of the assistant that nothing follows;
        otherwise it ends with the assistant's turn.
    """
    if text.startswith(bare := marks.user.lstrip()):  # files often lack the white space before the first turn
        text = marks.user + text[len(bare) :]
    pieces = re.split(f"({re.escape(marks.user)}|{re.escape(marks.assistant)})", text)
    before = pieces[0].strip()
    roles = [USER if mark == marks.user else ASSISTANT for mark in pieces[1::2]]
    turns = [Message(role, turn.strip()) for role, turn in zip(roles, pieces[2::2], strict=True)]
    if not turns or turns[0].role != USER:
        raise DataError(f"the text is no dialogue; expected it to begin with {marks.user!r}")
    if may_end_open and turns[-1].role == ASSISTANT and not turns[-1].content:
        turns.pop()
    elif not may_end_open and turns[-1].role != ASSISTANT:
        raise DataError(f"the dialogue ends with the user's turn; expected {marks.assistant!r} and a turn behind it")
    if empty := [number for number, turn in enumerate(turns, start=1) if turn.role == USER and not turn.content]:
        raise DataError(f"turn {empty[0]} of the dialogue, which is the user's, is empty")
    return (*([Message(SYSTEM, before)] if before else []), *turns)


def has_turns(text: str, marks: TurnMarks) -> bool:
    """Returns True if a text is a whole dialogue, rather than a single turn."""
    return marks.user in text or marks.assistant in text


def _equal(message: Message, other: Message) -> bool:
    return (message.role, message.content, message.thoughts, message.calls, message.name) == (
        other.role,
        other.content,
        other.thoughts,
        other.calls,
        other.name,
    )


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
