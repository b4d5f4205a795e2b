"""Conditions for statements that a module makes once: to make a statement takes longer than to execute it.

Consumes tables and names of their columns; produces conditions with parameters, and the parameters of one execution.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, bindparam

ITERATION = ("run", "branch", "iteration")
"""The columns of whatever belongs to an iteration."""


def matching(table: Any, *names: str) -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions that columns of a table have the values that an execution gives (`given`)."""
    return tuple(getattr(table, name) == bindparam(f"at_{name}") for name in names)


def given(**values: Any) -> dict[str, Any]:
    """Returns the parameters of the conditions of `matching`, by the names of the columns."""
    return {f"at_{name}": value for name, value in values.items()}
