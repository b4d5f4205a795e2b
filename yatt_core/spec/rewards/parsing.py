"""How a score is extracted from a judge's answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from yatt_core.spec.base import SpecModel

Bound = Annotated[float, Field(ge=-1e9, le=1e9)]
Take = Literal["first", "last"]


class YesNo(SpecModel):
    """A word for yes scores 1, a word for no scores 0.

    Only whole words count that end a line or stand before a punctuation mark, so that "no idea" is no score. Case is ignored.
    """

    kind: Literal["yes_no"] = "yes_no"
    yes: tuple[str, ...] = Field(default=("yes",), min_length=1)
    """Words that mean yes."""
    no: tuple[str, ...] = Field(default=("no",), min_length=1)
    """Words that mean no."""
    take: Take = "first"
    """Which match counts if there are several; `last` suits judges that reason before they answer."""

    @model_validator(mode="after")
    def _words_differ(self) -> Self:
        words = [word.casefold() for word in (*self.yes, *self.no)]
        if any(not word.strip() or word != word.strip() for word in words):
            raise ValueError("yes and no: expected words without surrounding white space")
        if len(set(words)) < len(words):
            raise ValueError("yes and no: expected different words")
        return self


class NumberInRange(SpecModel):
    """A number in decimal digits; a number outside the bounds is not a score."""

    minimum: Bound = 0.0
    """Minimum score."""
    maximum: Bound = 1.0
    """Maximum score."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is not below maximum {self.maximum:g}")
        return self


class Number(NumberInRange):
    """A number anywhere in the answer. With a maximum of 10, "8/10" and "8 out of 10" are 8, and "3/4" is no score."""

    kind: Literal["number"] = "number"
    take: Take = "last"
    """Which number counts if there are several."""


class Pattern(NumberInRange):
    """A number in the group `score` of an RE2 regular expression, matched in time linear in the answer's length."""

    kind: Literal["pattern"] = "pattern"
    pattern: str
    """The expression, such as `Score: (?P<score>[0-9.]+)`. The first match counts; put `(?s).*` in front to use
    the last one."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        import pyarrow as pa
        import pyarrow.compute as pc

        if "(?P<score>" not in pattern:
            raise ValueError("the pattern needs a group (?P<score>...) for the number")
        try:
            pc.extract_regex(pa.array([""]), pattern=pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"is not an RE2 regular expression with named groups only: {error}") from None
        return pattern


class WrongSteps(SpecModel):
    """The numbers of the wrong steps in brackets, such as `[2, 5]`, or `[]` for none; the last brackets count. For the
    part of `rewards.critique`. The score is the number of wrong steps.
    """

    kind: Literal["wrong_steps"] = "wrong_steps"


ParseSpec = Annotated[YesNo | Number | Pattern | WrongSteps, Field(discriminator="kind")]
