"""Rows that are read once and put aside are the same on every later pass; what cannot be put aside is read again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from yatt_core.datasets import kept_rows
from yatt_core.datasets.kept_rows import KeptRows
from yatt_core.datasets.rows import Row
from yatt_core.json_text import WrittenFloat, number_text
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.tool_calls import ToolCall


class Source:
    """Rows, and how often they were read."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.passes = 0

    def __call__(self) -> Iterator[Row]:
        self.passes += 1
        return iter(self.rows)


def plain(number: int, **entry: Any) -> Row:
    odd = number % 2
    answer = None if number % 3 else "a"
    more: dict[str, Any] = {"other_answers": ("b",) * odd, "rendered": odd == 1}
    return Row(f"train/rows:{number}", f"q {number} é🎈", answer, {"n": number, **entry}, ("m",) * odd, **more)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 700])
def test_later_passes_read_what_was_put_aside(count: int) -> None:
    source = Source([plain(number, deep=[{"x": [1.5, None, True, 10**30]}]) for number in range(count)])
    rows = KeptRows(source)
    assert list(rows) == list(rows) == source.rows
    assert source.passes == 1
    assert list(zip(rows, rows, strict=True)) == list(zip(source.rows, source.rows, strict=True)), "passes side by side"


def test_a_pass_that_ends_early_puts_nothing_aside() -> None:
    source = Source([plain(number) for number in range(600)])
    rows = KeptRows(source)
    assert list(islice(rows, 300)) == source.rows[:300]
    assert list(rows) == list(rows) == source.rows
    assert source.passes == 2


CALL = ToolCall("f", {"x": [1]}, "id")


@pytest.mark.parametrize(
    "row",
    [
        plain(1, written=WrittenFloat("2.50")),
        Row("o", "t", "a", {}, messages=(Message("user", "t"), Message("assistant", "", "hm", (CALL,), learnt=False))),
        Row("o", "t", "a", {}, reply=(Message("assistant", "t"), Message("tool", "r", name="f", call_id="id"))),
        Row("o", "t", "a", {}, tools=({"name": "f"},)),
    ],
)
@pytest.mark.parametrize("place", [0, 3000])
def test_rows_of_every_kind_are_put_aside(row: Row, place: int) -> None:
    source = Source([*(plain(number) for number in range(place)), row, row])
    rows = KeptRows(source)
    assert list(rows) == list(rows) == source.rows
    assert source.passes == 1
    *_, last = rows
    written = last.entry.get("written")
    assert written is None or number_text(written) == "2.50"


def test_too_many_rows_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "LARGEST_BYTES", 10_000)
    source = Source([plain(number) for number in range(600)])
    rows = KeptRows(source)
    assert list(rows) == list(rows) == source.rows
    assert source.passes == 2
