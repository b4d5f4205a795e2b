"""The search of examples/workloads as virtual engines call a tool: with an expression."""

from __future__ import annotations

from typing import Any

from yatt_workloads.retrieval.in_rollouts import search


def by_expression(expression: str, index: str) -> list[dict[str, Any]]:
    """Searches for an expression."""
    return search(expression, index, limit=2)
