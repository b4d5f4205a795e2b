"""Rollbacks, forks and revisions of the spec, with real drivers: another line, the same past, and a record of all of it."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from flows.branches import fork, revise, rollback
from flows.lineage import lineage_of
from flows.outbox import tracking_run
from tests.flows.tools import Driver
from yatt_core.checkpoints.retention import delete_snapshot
from yatt_core.errors import ConfigurationError


@pytest.fixture
def finished(driver: Driver) -> tuple[Driver, str]:
    """Four iterations on virtual engines, with snapshots of 0, 2 and 4."""
    run = driver.create("virtual.yaml", "name=lines", "iterations=4", "snapshots.every=2", "evaluation.every=0")
    driver.drive(run)
    return driver, run


def digests(driver: Driver, run: str) -> dict[int, str]:
    with driver.ledger() as ledger:
        return dict(ledger.commits.experience_digests(run))


def points(client: MlflowClient, run: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run, "reward/mean")]


def test_a_rollback_goes_on_along_another_line(finished: tuple[Driver, str]) -> None:
    """To iteration 3, which is no snapshot: its update is replayed from snapshot 2."""
    driver, run = finished
    before = digests(driver, run)
    done = rollback(driver.home, run, to=3, reason="reward fell")
    assert (done.branch, done.superseded, done.snapshot, done.replayed) == (1, 1, 2, 1)
    assert digests(driver, run) == {k: before[k] for k in (1, 2, 3)}
    driver.drive(run)
    after = digests(driver, run)
    assert {k: after[k] for k in (1, 2, 3)} == {k: before[k] for k in (1, 2, 3)}
    assert after[4] != before[4], "the new branch draws other samples"
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "completed"
        assert ledger.events.verify(run) is None
        assert ledger.records.shards(run, 0, 4), "the superseded iteration keeps its experience"
        check_nested(driver, run, tracking_run(ledger, run, 1))
        found = lineage_of(ledger, driver.home, run)
    assert [(part.branch, part.first, part.last) for part in found.line] == [(0, 0, 3), (1, 4, 4)]
    assert [(node.number, node.at, node.last, node.current) for node in found.branches] == [
        (0, None, 4, False),
        (1, 3, 4, True),
    ]
    assert found.data["data_digest"] and found.code_revision and found.placement


def check_nested(driver: Driver, run: str, nested: str | None) -> None:
    """The branch's own points, in a run that is nested in the first and was ended as it was."""
    client = MlflowClient(driver.home.tracking_uri)
    with driver.ledger() as ledger:
        first = ledger.runs.find(run).mlflow_run_id
        assert ledger.outbox.counts(run)[0] == 0
    assert first and nested and first != nested
    tracked = client.get_run(nested)
    assert tracked.data.tags["mlflow.parentRunId"] == first
    assert (tracked.data.tags["yatt.branch"], tracked.data.tags["yatt.parent_iteration"]) == ("1", "3")
    assert (tracked.info.status, client.get_run(first).info.status) == ("FINISHED", "FINISHED")
    assert (points(client, first), points(client, nested)) == ([1, 2, 3, 4], [4])


def test_a_fork_stands_on_copies_of_its_own(finished: tuple[Driver, str]) -> None:
    """A fork replays on its own copies after its parent has lost everything; a fork of it with another rule trains on."""
    driver, run = finished
    past = digests(driver, run)
    made = fork(driver.home, run, 3, ["iterations=5", "name=heir"])
    assert (made.run, made.snapshot, made.replayed) == ("heir-1", 2, 1)
    with driver.ledger() as ledger:
        rows = ledger.records.own_snapshots(run)
    for row in rows:
        delete_snapshot(driver.home.run_folder(run), row.folder)
    driver.drive(made.run)
    own = digests(driver, made.run)
    assert list(own) == [1, 2, 3, 4, 5]
    assert own[4] == past[4], "the same branch number, spec and weights draw the same samples"
    with pytest.raises(ConfigurationError, match=r"iteration 3 cannot be gone back to.*snapshots: 0, 2, 4"):
        fork(driver.home, run, 3)

    changed = ["algorithm.normalise=group_mean", "iterations=6"]
    with pytest.raises(ConfigurationError, match=r"under other values of algorithm.normalise.*Within reach: 2-5"):
        fork(driver.home, made.run, 3, changed)
    grandchild = fork(driver.home, made.run, 5, changed).run
    driver.drive(grandchild)
    assert {k: v for k, v in digests(driver, grandchild).items() if k <= 5} == own
    client = MlflowClient(driver.home.tracking_uri)
    with driver.ledger() as ledger:
        tracked = ledger.runs.find(grandchild).mlflow_run_id
        line = lineage_of(ledger, driver.home, grandchild).line
    assert tracked and client.get_run(tracked).data.tags["yatt.parent_run"] == made.run
    assert points(client, tracked) == [6]
    assert [(part.run, part.first, part.last) for part in line] == [(run, 0, 3), (made.run, 4, 5), (grandchild, 6, 6)]


def test_a_run_goes_on_under_another_spec_and_layout(finished: tuple[Driver, str]) -> None:
    """A revision at the last commit's snapshot: nothing is replayed, and the other layout is marked in the lineage."""
    driver, run = finished
    past = digests(driver, run)
    assert revise(driver.home, run, ["iterations=5", "trainer.engine.ranks=2"]) == 2
    driver.drive(run)
    assert {k: v for k, v in digests(driver, run).items() if k <= 4} == past
    with driver.ledger() as ledger:
        found = lineage_of(ledger, driver.home, run)
        recovered = ledger.phases.done(run, 0, 4, "recover")
    assert recovered and recovered.receipt and recovered.receipt["replayed"] == 0
    assert (found.iteration, found.spec_revision) == (5, 2)
    assert found.spec_changes[1]["reason"] == "--set iterations=5 --set trainer.engine.ranks=2"
    assert [mark["changes"]["layout"] for mark in found.drift] == [["virtual x 1", "virtual x 2"]]
