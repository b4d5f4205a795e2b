"""A run with a curriculum that is killed in the middle ends with the same draws, shares and bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.simulated import Simulation
from tests.flows.tools import Driver, same_result
from tests.matrix import in_verify

VIRTUAL = (
    "iterations=4", "sft=null", "data.held_out=20", "data.max_prompt_tokens=64", "checkpoints.every=100",
    "data.prompts_per_iteration=16",
    "data.curriculum.retire={at: 0.5, return_after: 2}", "rollout.engine={kind: virtual, clock_factor: 1000}",
    "trainer.engine={kind: virtual, clock_factor: 1000}", "rewards.correct_at=0.5",
    "rewards.parts=[{name: virtual, function: virtual_score}]",
)  # fmt: skip

SOURCE = "{kind: jsonl, path: words.jsonl, name: %s, weight: %d}"
SIMULATED = (
    f"data.sources=[{SOURCE % ('a', 1)}, {SOURCE % ('b', 2)}, {SOURCE % ('c', 1)}]",
    "data.curriculum={min_share: 0.1, max_share: 0.6, decay: 0.5}",
    "data.curriculum.retire={at: 0.5, return_after: 2}",
    "iterations=6",
    "checkpoints.every=4",
)


def left(run: Simulation) -> tuple[list[Any], list[Any]]:
    """Returns the cursor after each iteration, and all metrics of the curriculum."""
    with run.ledger() as ledger:
        commits = [ledger.commits.at(run.run, iteration) for iteration in range(7)]
        points = [point for point in ledger.metrics.result_points(run.run) if point.key.startswith("curriculum/")]
    return [commit.state["cursor"] for commit in commits if commit], points


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    run = Simulation.of(tmp_path_factory.mktemp("undisturbed"), *SIMULATED)
    run.drive()
    return left(run)


def test_shares_follow_the_success_and_solved_prompts_rest_and_return(undisturbed: tuple[list[Any], list[Any]]) -> None:
    cursors, points = undisturbed
    assert len(cursors) == 7 and "curriculum" not in cursors[0]
    shares = [[pool["share"] for pool in cursor["curriculum"]] for cursor in cursors[1:]]
    assert len({tuple(each) for each in shares}) == 6 and all(sum(each) == pytest.approx(1) for each in shares)
    assert all(0.1 - 1e-9 <= share <= 0.6 + 1e-9 for each in shares for share in each)
    for iteration, cursor in enumerate(cursors[1:], 1):
        dues = {int(due) for pool in cursor["curriculum"] for due in pool["returning"]}
        assert dues and dues <= {iteration + 2, iteration + 3}
    assert {point.key for point in points} == {
        f"curriculum/{pool}/{figure}" for pool in "abc" for figure in ("share", "success", "solved")
    }


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.verify)])
@pytest.mark.parametrize("place", ["commit:3", *in_verify("collect:1", "committed:3")])
def test_killed_anywhere_the_curriculum_is_the_same(
    tmp_path: Path, undisturbed: tuple[list[Any], list[Any]], place: str, cold: bool
) -> None:
    run = Simulation.of(tmp_path, *SIMULATED)
    assert run.drive(place) is None
    run.drive(cold=cold)
    assert left(run) == undisturbed


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_the_example_of_a_curriculum_killed_in_the_middle_ends_with_the_same_bits(driver: Driver) -> None:
    undisturbed, killed = (driver.create("../../configs/curriculum.yaml", *VIRTUAL) for _ in range(2))
    driver.drive(undisturbed)
    driver.drive_until_killed(killed, "collect:3")
    driver.end_actors(killed)
    driver.drive(killed)
    assert same_result(driver.results(killed), driver.results(undisturbed))
    with driver.ledger() as ledger:
        shares = dict(ledger.metrics.history(killed, "curriculum/spell_backward.3/share"))
        assert len(set(shares.values())) > 1
        assert dict(ledger.metrics.history(killed, "evaluation/pass_at_4")).keys() == {0, 4}
