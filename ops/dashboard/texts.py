"""What texts of a request have to look like: as a pattern for the OpenAPI document, and in words for whoever sends another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ops.integrations.promotion import LONGEST_REASON


@dataclass(frozen=True, slots=True)
class Like:
    """A text that matches the whole pattern. words: what would be right."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What checks the text."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What the document says of it."""
        return handler(schema) | {"pattern": self.pattern}

    def _checked(self, value: str) -> str:
        if re.fullmatch(self.pattern, value, re.ASCII) is None:
            raise PydanticCustomError("like", "right would be {words}", {"words": self.words})
        return value


def one_of(choices: Iterable[str]) -> Like:
    """One of some plain words."""
    listed = tuple(choices)
    return Like(f"^({'|'.join(listed)})$", f"one of {', '.join(listed)}")


Text = Annotated[str, Field(max_length=200), Like(r"^[^\x00]*$", "a text without NUL characters")]
"""What any text of a request is: no database takes a NUL."""
Reason = Annotated[
    str, Field(max_length=500), Like(r"^[^\x00-\x1f\x7f]*$", "a line of text, without control characters")
]
GivenReason = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_REASON),
    Like(
        r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$",
        "a line of text that says why, without control characters",
    ),
]
PhaseName = Annotated[str, Like("^[a-z_]{1,40}$", "the name of a phase, such as collect")]
