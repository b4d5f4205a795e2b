"""Constraints on the texts of requests: a pattern for the OpenAPI document, and a description for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from db.write.annotations import NOTE_CHARACTERS, TAG
from ops.integrations.promotion import LONGEST_REASON
from yatt_core.printable import UNSHOWN

CONTROL = rf"\t\n{UNSHOWN}"
"""What a terminal obeys or a page reorders: control characters, ends of lines, and marks of the direction of writing."""


@dataclass(frozen=True, slots=True)
class Like:
    """A constraint on a text.

    pattern: must match the whole text.
    words: describes a valid text, for error messages.
    """

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema with the check added."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Returns the JSON Schema with the pattern added."""
        return handler(schema) | {"pattern": self.pattern}

    def _checked(self, value: str) -> str:
        if re.fullmatch(self.pattern, value, re.ASCII) is None:
            raise PydanticCustomError("like", "expected {words}", {"words": self.words})
        return value


def one_of(choices: Iterable[str]) -> Like:
    """Returns the constraint that a text is one of the choices."""
    listed = tuple(choices)
    return Like(f"^({'|'.join(listed)})$", f"one of {', '.join(listed)}")


def as_unix_lines(value: Any) -> Any:
    """Returns a text with line feeds only: browsers send two characters for the end of a line, but count one."""
    return value.replace("\r\n", "\n") if isinstance(value, str) else value


def _note_text(value: Any) -> Any:
    text = as_unix_lines(value)
    return text.strip() if isinstance(text, str) else text


Text = Annotated[str, Field(max_length=200), Like(r"^[^\x00]*$", "a text without NUL characters")]
"""Any text of a request; databases do not accept NUL characters."""
Reason = Annotated[str, Field(max_length=500), Like(rf"^[^{CONTROL}]*$", "a line of text, without control characters")]
GivenReason = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_REASON),
    Like(
        rf"^[^{CONTROL}]*[^ {CONTROL}][^{CONTROL}]*$",
        "a line of text with the reason, without control characters",
    ),
]
NoteText = Annotated[
    str,
    Field(max_length=NOTE_CHARACTERS),
    Like(rf"^([^{CONTROL}]|[\t\n\r])*$", "a text without control characters"),
    BeforeValidator(_note_text),
]
TagName = Annotated[str, Like(f"^{TAG.pattern}$", "up to 40 lower-case letters, digits, '.', '_' and '-'")]
PhaseName = Annotated[str, Like("^[a-z_]{1,40}$", "the name of a phase, such as collect")]
