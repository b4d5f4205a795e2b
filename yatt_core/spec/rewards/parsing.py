"""How a score is read from what a judge writes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from yatt_core.spec.base import SpecModel

Bound = Annotated[float, Field(ge=-1e9, le=1e9)]
Take = Literal["first", "last"]


class YesNo(SpecModel):
    """A word for yes scores 1, a word for no 0; whole words, in any case of letters."""

    kind: Literal["yes_no"] = "yes_no"
    yes: tuple[str, ...] = Field(default=("yes",), min_length=1)
    """Words that mean yes."""
    no: tuple[str, ...] = Field(default=("no",), min_length=1)
    """Words that mean no."""
    take: Take = "first"
    """Which one counts where there are several: the last one for judges that think aloud."""

    @model_validator(mode="after")
    def _words_differ(self) -> Self:
        words = [word.casefold() for word in (*self.yes, *self.no)]
        if any(not word.strip() or word != word.strip() for word in words):
            raise ValueError("yes and no hold words, without white space around them")
        if len(set(words)) < len(words):
            raise ValueError("yes and no hold different words")
        return self


class NumberInRange(SpecModel):
    """A number in decimal digits; one outside the bounds is no score."""

    minimum: Bound = 0.0
    """Least score."""
    maximum: Bound = 1.0
    """Greatest score."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is not below maximum {self.maximum:g}")
        return self


class Number(NumberInRange):
    """A number anywhere in the answer."""

    kind: Literal["number"] = "number"
    take: Take = "last"
    """Which one counts where there are several."""


class Pattern(NumberInRange):
    """A number in the group `score` of a regular expression of RE2, whose time is linear in the answer, whatever it holds."""

    kind: Literal["pattern"] = "pattern"
    pattern: str
    """Such as `Score: (?P<score>[0-9.]+)`. The first match counts; `(?s).*` in front makes it the last one."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        import pyarrow as pa
        import pyarrow.compute as pc

        if "(?P<score>" not in pattern:
            raise ValueError("the pattern has no group (?P<score>...) that holds the number")
        try:
            pc.extract_regex(pa.array([""]), pattern=pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"is not a regular expression of RE2 with named groups alone: {error}") from None
        return pattern


ParseSpec = Annotated[YesNo | Number | Pattern, Field(discriminator="kind")]
