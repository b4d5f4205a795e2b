"""The page and the API of suites: curve, figures by set, regressions."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from db.write.suites import SuiteRow
from ops.web.context import Context
from tests.dashboard.pages import BROWSER, check_page, words

TASKS = 12


def add(served: Context, iteration: int, right: int) -> None:
    results = [
        {"prompt_id": f"s/{n}", "source": 0, "samples": 1, "correct": int(n < right), "reward": 0.0, "majority": None}
        for n in range(TASKS)
    ]
    each: dict[str, Any] = {"tasks": TASKS, "accuracy": right / TASKS, "low": 0.1, "high": 0.9, "reward": 0.0}
    figures = {**each, "pass_at_8": {"value": 0.75, "low": 0.5, "high": 0.9}, "sources": {"sums": each}}
    source = {"kind": "jsonl", "path": "/data/sums.jsonl"}
    suite = {"name": "math", "sets": [{"name": "sums", "source": source}]}
    row = SuiteRow("toy-1", "math", "d", suite, 0, iteration, f"w{iteration}", figures, results, "<ann>", 0.5)
    served.ledger.suites.add(row)


def test_a_run_without_suites_says_how_to_evaluate_one(client: TestClient) -> None:
    page = client.get("/runs/toy-1/evaluations", headers=BROWSER)
    assert "yatt evaluate toy-1 --suite SUITE" in words(check_page(page.text))
    assert client.get("/api/v1/runs/toy-1/evaluations").json() == []
    assert client.get("/api/v1/runs/toy-9/evaluations").status_code == 404


def test_the_curve_the_figures_and_a_regression_are_shown(client: TestClient, served: Context) -> None:
    for iteration, right in ((0, 4), (2, 12), (4, 3)):
        add(served, iteration, right)
    page = client.get("/runs/toy-1/evaluations", headers=BROWSER).text
    shown = words(check_page(page))
    assert "pass@8 0.750" in shown and "sums 1.000" in shown and "by <ann>" in shown
    assert "regression the best one, iteration 2 (p = 0.002)" in shown
    assert page.count('class="item"') == 3 and page.count('class="c7"') == 1
    (history,) = client.get("/api/v1/runs/toy-1/evaluations?suite=math").json()
    assert [len(point["worse_than"]) for point in history["points"]] == [0, 0, 1]
    assert history["points"][2]["worse_than"][0]["found"]["wins"] == 9
