"""Texts that are dialogues, with a mark before each turn: pure functions, in linear time.

Consumes a text and its marks. Produces its messages. Raises `DataError` for a text that is no dialogue.
"""

from __future__ import annotations

import re
from typing import Protocol

from yatt_core.errors import DataError
from yatt_core.prompts.message_forms import ASSISTANT, SYSTEM, USER
from yatt_core.prompts.prompt import Message


class TurnMarks(Protocol):
    """What turns begin with in a dialogue."""

    @property
    def user(self) -> str:
        """Before a turn of the user."""

    @property
    def assistant(self) -> str:
        """Before a turn of the assistant."""


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
