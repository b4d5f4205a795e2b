"""Words for evaluations of suites, shared by commands and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from yatt_core.evaluation.history import Regression


def worse_text(worse_than: Iterable[Regression]) -> str:
    """Returns in words what an evaluation is significantly worse than; empty if nothing."""
    return "; ".join(
        f"the {each.against} one, iteration {each.iteration} (p = {each.found.p_value:.2g})" for each in worse_than
    )


def estimates_of(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the estimates beside the accuracy, by the name that people know, such as pass@8."""
    return {figure_name(name): each for name, each in figures.items() if isinstance(each, dict) and "value" in each}


def figure_name(name: str) -> str:
    """Returns the name of a figure for people."""
    known = {"majority": "majority vote", "panel": "judges"}
    return known.get(name) or name.replace("pass_at_", "pass@").replace("judge_", "judge ")
