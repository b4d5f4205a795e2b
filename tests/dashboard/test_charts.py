"""Charts that depend on the metrics that a run has: evaluations and curricula."""

from __future__ import annotations

from ops.dashboard.pages.charts import KEYS, curriculum_charts, evaluation_charts

FIGURES = ("evaluation/accuracy", "evaluation/pass_at_4", "evaluation/easy/accuracy", "evaluation/hard/accuracy")
BOUNDED = [key + bound for key in FIGURES for bound in ("", "_low", "_high")]


def test_each_figure_of_an_evaluation_is_drawn_with_its_interval() -> None:
    charts = evaluation_charts("toy-1", ["loss", "evaluation/reward", *BOUNDED])
    found = {chart.title: chart.sources[0].names for chart in charts}
    interval = {
        "evaluation/pass_at_4": "estimate",
        "evaluation/pass_at_4_low": "low",
        "evaluation/pass_at_4_high": "high",
    }
    assert found["pass@4"] == interval
    assert found["Accuracy by source"] == {"evaluation/easy/accuracy": "easy", "evaluation/hard/accuracy": "hard"}
    assert found.keys() == {"accuracy", "pass@4", "Accuracy by source"}
    assert evaluation_charts("toy-1", ["loss"]) == []


def test_a_curriculum_with_many_pools_is_drawn_in_parts() -> None:
    known = [f"curriculum/p{number:03}/{figure}" for number in range(KEYS + 1) for figure in ("share", "solved")]
    titles = [chart.title for chart in curriculum_charts("toy-1", known)]
    assert titles == [
        f"{what} by pool ({part} of 2)" for what in ("Share of draws", "Solved prompts") for part in (1, 2)
    ]  # fmt: skip
    assert curriculum_charts("toy-1", []) == []
