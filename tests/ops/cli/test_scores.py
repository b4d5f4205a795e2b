"""`yatt scores`: the slowest and dearest scores of a run, from the telemetry that its driver leaves."""

from __future__ import annotations

from typing import Any

import pytest

from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.experience.telemetry import write_telemetry


def score(number: int, seconds: float, cost: float | None, part: str = "judge") -> dict[str, Any]:
    return {
        "part": part, "prompt_ordinal": number, "prompt_id": f"p{number}", "sample": 1, "seconds": seconds, "waited": 0.5,
        "retries": 2, "tokens": 3, "prompt_tokens": 11, "cost": cost,
    }  # fmt: skip


@pytest.fixture
def run(home: Home) -> str:
    name = seed_run(home)
    folder = home.run_folder(name)
    first = [score(0, 1.0, 0.5), score(1, 9.0, 0.1), {"part": "judge"}, 7]
    write_telemetry(
        folder, 0, 1, "collect.w00.t0001", {"shard-0000": {"generate": 1.0, "scores": first}, "shard-0001": 3}
    )
    write_telemetry(folder, 0, 2, "collect.w00.t0001", {"shard-0000": {"scores": [score(2, 4.0, None, "other")]}})
    write_telemetry(folder, 0, 2, "prepare.t0001", {"shard-0000": {"scores": [score(3, 99.0, 99.0)]}})
    return name


def test_the_slowest_and_the_dearest_come_first_with_their_samples(yatt: Yatt, run: str) -> None:
    document = yatt("scores", run, "-o", "json").document
    assert (document["first"], document["last"]) == (1, 2)
    assert [row["prompt_ordinal"] for row in document["slowest"]] == [1, 2, 0]
    assert [row["prompt_ordinal"] for row in document["dearest"]] == [0, 1], "without prices, the cost is unknown"
    assert document["slowest"][0] == {"iteration": 1, **score(1, 9.0, 0.1)}
    text = yatt("scores", run).out
    assert "the slowest scores of iterations 1 to 2" in text and "the dearest" in text and "p1" in text


def test_scores_are_selected_by_iteration_part_and_number(yatt: Yatt, run: str) -> None:
    assert [row["iteration"] for row in yatt("scores", run, "--last", "1", "-o", "json").document["slowest"]] == [2]
    one = yatt("scores", run, "--iteration", "1", "--limit", "1", "-o", "json").document
    assert [row["prompt_ordinal"] for row in one["slowest"]] == [1]
    other = yatt("scores", run, "--part", "other", "-o", "json").document
    assert [row["part"] for row in other["slowest"]] == ["other"] and other["dearest"] == []


def test_a_run_that_asked_no_endpoint_says_so(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    assert yatt("scores", run, "--iteration", "2").out == f"{run}: no endpoint was asked for a score in iteration 2\n"
    assert yatt("scores", run, "--iteration", "7").out == f"{run}: no endpoint was asked for a score in iteration 7\n"
