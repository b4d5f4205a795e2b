"""How numbers and plain values are written for people."""

from __future__ import annotations

import pytest

from ops.presentation.words import large_number
from ops.web.formats import evidence


@pytest.mark.parametrize(
    ("number", "said"), [(7_615_616_512, "7.62 B"), (124_000_000, "124 M"), (99_900, "99.9 k"), (12, "12")]
)
def test_counts_have_a_fitting_unit(number: int, said: str) -> None:
    assert large_number(number) == said


def test_evidence_is_written_without_the_marks_of_a_language() -> None:
    assert evidence({"accuracy": 0.75, "tasks": 12, "best": True, "none": None}) == (
        "accuracy 0.75, tasks 12, best True, none –"
    )
    assert (evidence(["a", 1]), evidence({}), evidence("text")) == ("a, 1", "–", "text")
