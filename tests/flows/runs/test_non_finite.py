"""A non-finite update in real runs: skipped or rolled back by a recorded choice that recovery obeys."""

from __future__ import annotations

import pytest

from tests.faults import not_finite_at
from tests.flows.tools import Driver, same_result

BROKEN = 4
"""The non-finite update."""


@pytest.mark.verify
def test_a_skipped_update_is_skipped_again_in_replay(driver: Driver) -> None:
    """Checkpoints are at 3 and 6: after the kill, new actors replay updates 4 (skipped) and 5."""
    quiet, killed = (driver.create("virtual.yaml", "iterations=7") for _ in range(2))
    for run in (quiet, killed):
        not_finite_at(driver.home.run_folder(run), BROKEN)
    driver.drive(quiet)
    driver.drive_until_killed(killed, "collect:6")
    driver.end_actors(killed)
    driver.drive(killed)
    assert same_result(driver.results(quiet), driver.results(killed))
    with driver.ledger() as ledger:
        assert ledger.records.choices(killed, 0, 4)["non_finite"].body["answer"] == "skip"
        assert [step for step, _ in ledger.metrics.history(killed, "update/skipped")] == [4]
        (recovery,) = [a for a in ledger.phases.attempts(killed, 0, 5) if a.phase == "recover" and a.state == "DONE"]
        assert recovery.receipt is not None
        assert (recovery.receipt["restored"], recovery.receipt["replayed"]) == (3, 2)


@pytest.mark.verify
def test_a_rollback_continues_from_a_checkpoint_on_another_branch(driver: Driver) -> None:
    """The same update fails on branch 0 only."""
    run = driver.create("virtual.yaml", "recovery.on_non_finite=rollback", "iterations=6")
    not_finite_at(driver.home.run_folder(run), BROKEN)
    driver.drive(run)
    results = driver.results(run)
    assert (results.state, results.iteration) == ("completed", 6)
    with driver.ledger() as ledger:
        branches = ledger.overview.show(run).branches
        assert [(branch.number, branch.parent_iteration) for branch in branches] == [(0, None), (1, 3)]
        assert ledger.records.shards(run, 0, 4), "the superseded iteration keeps its experience"
        old, new = (ledger.records.shards(run, branch, 4) for branch in (0, 1))
        assert [row.group_digests for row in old] != [row.group_digests for row in new]
        assert ledger.commits.at(run, 4).branch == 1
        assert ledger.events.verify(run) is None
