"""Matrices of tests: what `make test` tries of them shows the behaviour, and `make verify` tries the rest."""

from __future__ import annotations

from typing import Any

import pytest


def in_verify(*values: Any) -> list[Any]:
    """Returns the values of a parameter, or tuples of several, that only `make verify` tries."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.verify) for value in values
    ]
