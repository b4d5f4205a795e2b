"""Models of given values take no boolean for a number, and booleans where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import Field, JsonValue, ValidationError

from yatt_core.section import GivenModel


class Inner(GivenModel):
    flag: bool = False
    share: float = 0.0


class Sample(GivenModel):
    number: float | None = None
    several: tuple[int, ...] = ()
    shares: Mapping[str, float] = {}
    most: int = Field(default=0, alias="max")
    flag: bool = False
    free: JsonValue = None
    either: int | bool = 0
    section: int | Inner = 0


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"number": True}, ("number",)),
        ({"several": [1, False]}, ("several", 1)),
        ({"shares": {"a": 1.0, "b": True}}, ("shares", "b")),
        ({"max": True}, ("max",)),
    ],
)
def test_a_boolean_is_no_number(tree: dict[str, Any], place: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(tree)
    (found,) = caught.value.errors()
    assert found["loc"] == place
    assert repr(found["input"]) in ("true", "false"), "as a file writes it"


def test_booleans_and_numbers_are_accepted_where_they_are_wanted() -> None:
    tree = {"flag": True, "free": {"a": [True, 1]}, "either": True, "section": {"flag": True, "share": 1}, "number": 1}
    sample = Sample.model_validate(tree)
    assert sample.flag is True and sample.free == {"a": [True, 1]} and sample.either is True
    assert isinstance(sample.section, Inner) and sample.section.flag is True
    assert sample.number == 1.0
