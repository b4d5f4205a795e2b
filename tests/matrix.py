"""Matrices of tests: what `make test` tries of them shows the behaviour, and `make verify` tries the rest.

Consumes the marker expression of the session, which tells the two apart; produces values and numbers of examples.
"""

from __future__ import annotations

from typing import Any

import pytest

FEW = 10
"""Examples on which a property is tried in any case."""
GATE_EXAMPLES = 25
"""Examples of a property that gives no number, in a session without the full matrices."""
_is_whole = True


def leave_out_matrices() -> None:
    """Tells the modules that are collected from now on that this session tries no full matrices."""
    global _is_whole
    _is_whole = False


def examples(number: int, least: int = FEW) -> int:
    """Returns the number of examples of a property: all in `make verify`, a quarter of them in `make test`.

    least: how many there are in any case, if there are so many at all.
    """
    return number if _is_whole else min(number, max(least, number // 4))


def in_verify(*values: Any) -> list[Any]:
    """Returns the values of a parameter, or tuples of several, that only `make verify` tries."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.verify) for value in values
    ]
