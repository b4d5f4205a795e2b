"""Rollbacks, forks and revisions of the spec with real drivers: another branch, the same past, and a record of both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from mlflow.tracking import MlflowClient

from flows.branching.branches import fork, revise, rollback
from flows.delivery.outbox import tracking_run
from flows.reports.lineage import lineage_of
from tests.flows.tools import Driver
from tests.recovery.nursery import Nursery
from yatt_core.errors import ConfigurationError

pytestmark = pytest.mark.timeout(600)
Finished = tuple[Driver, str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Finished:
    """Drives four iterations on virtual engines, with checkpoints of 0, 2 and 4. Tests only ever fork this run.

    Its reward is a file that changes once the run has begun, and again when it has ended.
    """
    driver = Driver(tmp_path_factory.mktemp("lines"), nursery)
    file = driver.home.folder.parent / "reward.py"
    file.write_text("def score(prompt, response):\n    return len(response) % 7 / 7\n")
    reward = f"rewards.parts=[{{name: own, file: '{file}:score'}}]"
    given = ("name=lines", "iterations=4", "checkpoints.every=2", "evaluation.every=0", reward)
    run = driver.create("virtual.yaml", *given)
    file.write_text("raise SystemExit('not the file of the run')\n")
    driver.drive(run)
    file.write_text("def score(prompt, response):\n    return 0.5\n")
    return driver, run


@pytest.fixture(scope="module")
def heir(finished: Finished) -> str:
    """Forks the finished run at 3, without a checkpoint, and drives the fork to 4 while the parent's folder is gone."""
    driver, run = finished
    made = fork(driver.home, run, 3, ["name=heir"])
    assert (made.run, made.checkpoint, made.replayed) == ("heir-1", 2, 1)
    folder = driver.home.run_folder(run)
    folder.rename(folder.with_name("elsewhere"))
    driver.drive(made.run)
    folder.with_name("elsewhere").rename(folder)
    return made.run


def digests(driver: Driver, run: str) -> dict[int, str]:
    with driver.ledger() as ledger:
        return dict(ledger.commits.experience_digests(run))


def points(client: MlflowClient, run: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run, "reward/mean")]


def test_a_fork_has_its_own_copies(finished: Finished, heir: str) -> None:
    driver, run = finished
    assert digests(driver, heir) == digests(driver, run), (
        "the same branch number, spec and weights draw the same samples"
    )
    with driver.ledger() as ledger:
        assert ledger.commits.at(heir, 4).weights_digest == ledger.commits.at(run, 4).weights_digest  # type: ignore[union-attr]
        tracked = ledger.runs.find(heir).mlflow_run_id
        assert [fork.run for fork in ledger.overview.forks(run)] == [heir]
    client = MlflowClient(driver.home.tracking_uri)
    assert tracked and points(client, tracked) == [4]
    tags = client.get_run(tracked).data.tags
    assert (tags["yatt.parent_run"], tags["yatt.parent_iteration"]) == (run, "3")
    said = yatt(driver, "lineage", heir, "-o", "json")
    assert [(part["run"], part["first"], part["last"]) for part in json.loads(said)["line"]] == [
        (run, 0, 3),
        (heir, 4, 4),
    ]


def test_a_fork_and_a_revision_that_name_a_reward_file_take_its_present_contents(finished: Finished) -> None:
    driver, run = finished
    file = driver.home.folder.parent / "reward.py"
    with driver.ledger() as ledger:
        before = ledger.runs.revision(run).spec["rewards"]["parts"][0]
    named = f"rewards.parts.0.file={before['file']}"
    made = fork(driver.home, run, 3, ["name=renamed", named]).run
    file.write_text("def score(prompt, response):\n    return 0.25\n")
    assert revise(driver.home, made, [named]) == 2
    file.write_text("def score(prompt, response):\n    return 0.5\n")
    with driver.ledger() as ledger:
        digests = [ledger.runs.revision(made, number).spec["rewards"]["parts"][0]["sha256"] for number in (1, 2)]
    assert len({before["sha256"], *digests}) == 3
    code = driver.home.run_folder(made) / "code"
    assert {folder.name for folder in code.iterdir()} == set(digests)


def test_a_rollback_continues_on_another_branch(finished: Finished, heir: str) -> None:
    """The fork returns to its fork point, which has no checkpoint: update 3 is replayed from a copy of checkpoint 2."""
    driver, run = finished
    before = digests(driver, heir)
    done = rollback(driver.home, heir, to=3, reason="reward fell")
    assert (done.branch, done.superseded, done.checkpoint, done.replayed) == (1, 1, 2, 1)
    assert digests(driver, heir) == {k: before[k] for k in (1, 2, 3)}
    driver.drive(heir)
    after = digests(driver, heir)
    assert {k: after[k] for k in (1, 2, 3)} == {k: before[k] for k in (1, 2, 3)}
    assert after[4] != before[4], "the new branch draws other samples"
    with driver.ledger() as ledger:
        assert ledger.runs.find(heir).state == "completed"
        assert ledger.events.verify(heir) is None
        assert ledger.records.shards(heir, 0, 4), "the superseded iteration keeps its experience"
        check_nested(driver, heir, tracking_run(ledger, heir, 1))
        found = lineage_of(ledger, driver.home, heir)
    assert [(part.run, part.branch, part.first, part.last) for part in found.line] == [(run, 0, 0, 3), (heir, 1, 4, 4)]
    assert [(node.number, node.at, node.last, node.current) for node in found.branches] == [
        (0, 3, 4, False),
        (1, 3, 4, True),
    ]
    assert found.data["data_digest"] and found.code_revision and found.placement
    said = yatt(driver, "lineage", heir)
    assert f"branch 1 after 3 of {run} branch 0, to iteration 4, current (reward fell)" in said


def check_nested(driver: Driver, run: str, nested: str | None) -> None:
    """Checks that the branch's own points are in a nested run, whose status is the same as its parent's."""
    client = MlflowClient(driver.home.tracking_uri)
    with driver.ledger() as ledger:
        first = ledger.runs.find(run).mlflow_run_id
        assert ledger.outbox.counts(run)[0] == 0
    assert first and nested and first != nested
    tracked = client.get_run(nested)
    assert tracked.data.tags["mlflow.parentRunId"] == first
    assert (tracked.data.tags["yatt.branch"], tracked.data.tags["yatt.parent_iteration"]) == ("1", "3")
    assert (tracked.info.status, client.get_run(first).info.status) == ("FINISHED", "FINISHED")
    assert (points(client, first), points(client, nested)) == ([4], [4])


def yatt(driver: Driver, *words: str) -> str:
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(driver.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.verify
def test_a_fork_of_a_fork_trains_with_changed_settings(finished: Finished, heir: str) -> None:
    driver, run = finished
    changed = ["algorithm.advantage.kind=group_mean", "iterations=6"]
    with pytest.raises(ConfigurationError, match=r"iteration 3 .* algorithm.advantage.kind.*: 2-4;"):
        fork(driver.home, heir, 3, changed)
    made = fork(driver.home, heir, 4, changed).run
    own = digests(driver, heir)
    driver.drive(made)
    after = digests(driver, made)
    assert list(after) == [1, 2, 3, 4, 5, 6]
    assert {k: v for k, v in after.items() if k <= 4} == own
    with driver.ledger() as ledger:
        line = lineage_of(ledger, driver.home, made).line
    assert (line[0].run, line[-1].run, line[-1].first) == (run, made, 5)


@pytest.mark.verify
def test_a_run_continues_with_another_spec_and_layout(finished: Finished) -> None:
    """A revision at the last commit's checkpoint replays nothing and marks the other layout in the lineage."""
    driver, parent = finished
    run = fork(driver.home, parent, 4).run
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
