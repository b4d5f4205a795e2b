"""How a response is cut into steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from yatt_core.spec.base import SpecModel


class BlankLines(SpecModel):
    """A step begins after each blank line."""

    kind: Literal["blank_lines"] = "blank_lines"


class Lines(SpecModel):
    """A step begins at each line that is not blank."""

    kind: Literal["lines"] = "lines"


class Marker(SpecModel):
    """A step begins at each match of an RE2 regular expression, found in time linear in the response's length."""

    kind: Literal["marker"] = "marker"
    pattern: str = r"(?im)^[ \t]*step +[0-9]+"
    """The expression; by default, a line that begins with `Step` and a number. Text before the first match is a step of
    its own."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            (matches_nothing,) = pc.match_substring_regex(pa.array([""]), pattern=pattern).to_pylist()
        except pa.ArrowInvalid as error:
            raise ValueError(f"is not an RE2 regular expression: {error}") from None
        if matches_nothing:
            raise ValueError("matches the empty text; expected an expression for the text at which a step begins")
        return pattern


StepSplit = Annotated[BlankLines | Lines | Marker, Field(discriminator="kind")]
