"""A run of reinforcement learning whose policy calls an exported retriever and is rewarded for what it finds; also killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.workloads.tests.retrieval.exported import exported_retriever
from tests.flows.tools import Driver, same_result
from yatt_core.prompts.tool_calls import KINDS
from yatt_workloads.retrieval.in_rollouts import search

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]


def create(driver: Driver, index: str, rows: Path) -> str:
    tool = {"name": "search", "function": "tests.flows.searching:by_expression", "options": {"index": index}}
    reward = {
        "name": "found",
        "function": "yatt_workloads.retrieval.in_rollouts:reciprocal_rank",
        "options": {"index": index},
    }
    return driver.create(
        "tools.yaml",
        f"rollout.tools.functions={json.dumps([tool])}",
        f"rewards.parts={json.dumps([reward])}",
        f"data.sources={json.dumps([{'kind': 'jsonl', 'path': str(rows)}])}",
    )


def test_a_retriever_is_a_tool_and_a_reward(driver: Driver, tmp_path: Path) -> None:
    folder, _ = exported_retriever(tmp_path)
    index = str(folder)
    # Virtual engines answer in numbers, which the retriever does not know: a query of unknown words has best documents too.
    answers = [hit["document"] for hit in search("1 2 3", index, limit=5)]
    rows = tmp_path / "rows.jsonl"
    lines = (json.dumps({"prompt": f"Find {number}", "answer": answers[number % 5]}) for number in range(40))
    rows.write_text("".join(f"{line}\n" for line in lines))
    undisturbed, struck = (create(driver, index, rows) for _ in range(2))
    driver.drive(undisturbed)
    driver.drive_until_killed(struck, "collect:2")
    driver.end_actors(struck)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(undisturbed))
    with driver.ledger() as ledger:
        found = {key: dict(ledger.metrics.history(undisturbed, key)) for key in ledger.metrics.latest(undisturbed)}
    assert found["tools/calls"][1] > 0
    assert all(found[f"tools/errors/{kind}"][1] == 0 for kind in KINDS)
    assert 0 < found["reward/mean"][1] <= 1
