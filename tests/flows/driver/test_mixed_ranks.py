"""Ranks on processors that compute differently: recorded with each commit, and said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flows.driver.actors_start import ActorsStart

NATIVE, WIDENED = {"bfloat16 products": "native"}, {"bfloat16 products": "widened"}


def test_ranks_that_multiply_differently_are_recorded_and_said_whenever_they_change() -> None:
    said: list[str] = []
    context: Any = SimpleNamespace(observer=SimpleNamespace(warned=said.append))
    nothing: Any = None
    begun = ActorsStart(lambda: None)
    begun.enter_branch(context, nothing, nothing)
    begun._note_environment([WIDENED, WIDENED])
    assert (begun.environment, said) == (WIDENED, [])
    for _ in range(2):
        begun._note_environment([NATIVE, WIDENED])
    assert begun.environment == {"bfloat16 products": "native (rank 0), widened (rank 1)"}
    (line,) = said
    assert "bfloat16 products: native (rank 0), widened (rank 1)" in line and "the trainer's ranks" in line
    begun._note_environment([NATIVE, NATIVE])
    begun._note_environment([NATIVE, WIDENED])
    assert said == [line, line]
