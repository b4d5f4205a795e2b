"""The space of a sweep: for each key of the runs' spec, the values to choose from, or a range.

Consumes plain values of a YAML file, or the text of `--over`. Produces settings: a value for each key. Pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from yatt_core.errors import ConfigurationError
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import parse_yaml

Setting = Mapping[str, Any]
"""A value for each key of the space, by dotted key."""
DIGITS = 4
"""Significant digits of a proposed number, so that people can read and repeat it."""
MOST_TRIALS = 1000
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})((?::(?:log|\d+))*)")


@dataclass(frozen=True, slots=True)
class Choices:
    """Values to choose from, without an order."""

    values: tuple[Any, ...]

    def grid_values(self) -> tuple[Any, ...]:
        """Returns the values of a grid."""
        return self.values

    def drawn(self, random: np.random.Generator) -> Any:
        """Returns a random value."""
        return self.values[int(random.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, which are included; whole numbers if both bounds are whole.

    log: whether equal ratios are equally far apart.
    points: number of values of a grid.
    """

    low: int | float
    high: int | float
    log: bool = False
    points: int = 2

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> int | float:
        """Returns the value at a share of the way from low to high."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return self.readable(value)

    def readable(self, value: float) -> int | float:
        """Returns a value with few digits, between the bounds."""
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def grid_values(self) -> tuple[int | float, ...]:
        """Returns the values of a grid, each once."""
        return tuple(dict.fromkeys(self.at(step / (self.points - 1)) for step in range(self.points)))

    def drawn(self, random: np.random.Generator) -> int | float:
        """Returns a random value."""
        return self.at(float(random.random()))


Space = Mapping[str, Choices | Range]


class Dimension(SpecModel):
    """The values that a key may have: `values` to choose from, or numbers from `low` to `high`."""

    values: tuple[Any, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """Values to choose from, without an order, each once."""
    low: int | float | None = None
    """Smallest value of a range; whole numbers are proposed if both bounds are whole."""
    high: int | float | None = None
    """Largest value of a range."""
    log: bool = False
    """If true, equal ratios are equally far apart, as suits a learning rate; the bounds are positive."""
    points: int | None = Field(default=None, ge=2, le=1000)
    """Number of values that a grid takes from a range, bounds included."""

    @model_validator(mode="after")
    def _choices_or_range(self) -> Dimension:
        if self.values is not None:
            if (self.low, self.high, self.log, self.points) != (None, None, False, None):
                raise ValueError("values and a range: give one of them")
            if any(value in self.values[:place] for place, value in enumerate(self.values)):
                raise ValueError("values: each can be listed once only")
            return self
        if self.low is None or self.high is None:
            raise ValueError("expected values, or low and high")
        if self.low >= self.high:
            raise ValueError(f"low: expected less than high {self.high!r}, not {self.low!r}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: a logarithmic range needs positive bounds, not {self.low!r}")
        return self

    @property
    def domain(self) -> Choices | Range:
        """The values that can be proposed."""
        if self.values is not None:
            return Choices(self.values)
        assert self.low is not None and self.high is not None, "the model was validated"
        return Range(self.low, self.high, self.log, self.points or 2)


def grid(space: Space) -> Iterator[Setting]:
    """Yields all settings of a grid; the last key changes fastest."""
    for values in product(*(each.grid_values() for each in space.values())):
        yield dict(zip(space, values, strict=True))


def grid_size(space: Space) -> int:
    """Returns the number of settings of a grid."""
    return math.prod(len(each.grid_values()) for each in space.values())


def drawn_setting(space: Space, seed: int) -> Setting:
    """Returns a random setting, a function of the seed."""
    random = np.random.Generator(np.random.PCG64(seed))
    return {key: each.drawn(random) for key, each in space.items()}


def parse_dimension(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the key and the tree of a dimension as it is typed: `KEY=A,B,C`, `KEY=LOW..HIGH[:log][:POINTS]`.

    Raises `ConfigurationError`.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not key or not written:
        raise ConfigurationError(
            f"--over {text}: expected KEY=VALUE,VALUE,... or KEY=LOW..HIGH, such as rollout.temperature=0.7,1.0 or "
            "trainer.optimizer.learning_rate=1e-5..1e-3:log"
        )
    found = RANGE.fullmatch(written)
    if found is None:
        return key, {"values": parse_yaml(f"[{written}]", f"--over {text}")}
    low, high, options = found.groups()
    words = options.split(":")[1:]
    tree: dict[str, Any] = {"low": _number(low), "high": _number(high), "log": "log" in words}
    counts = [int(word) for word in words if word != "log"]
    return key, tree | ({"points": counts[-1]} if counts else {})


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
