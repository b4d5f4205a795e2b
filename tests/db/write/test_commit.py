"""Commits: atomic, without gaps, along branches and forks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from db.core.engine import Fence
from db.core.errors import AlreadyCommitted, Conflict, LeaseHeld, LedgerError, OutOfOrder
from db.ledger import Ledger
from db.write.metrics import Metric
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from db.write.runs import Parent
from tests.db.tools import SimulatedClock, commit_of, commit_through, everything, holder, point_count


@pytest.mark.postgresql
def test_a_commit_makes_everything_visible_at_once(ledger: Ledger, run: str, fence: Fence) -> None:
    extra = OutboxEntry("toy-1/tags/0", "tags", {"digest": "d"}, 5)
    ledger.commits.commit(fence, replace(commit_of(0), outbox=[extra], event={"code": "abc"}))
    commit = ledger.commits.latest(run)
    assert commit is not None
    assert (commit.iteration, commit.branch, commit.term) == (0, 0, fence.term)
    assert commit.state == {"cursor": 0}
    assert commit.fingerprint == {"loss": 0.5}
    assert ledger.metrics.history(run, "reward") == [(0, 0.0)]
    assert [row.kind for row in ledger.outbox.claim(fence)] == ["tags", "metrics"]
    link = ledger.events.links(run)[-1]
    assert (link.kind, link.body["weights_digest"], link.body["code"]) == ("commit", "weights 0.0", "abc")
    assert ledger.runs.find(run).iteration == 0


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (commit_of(0), AlreadyCommitted, r"branch 0, iteration 0 .* 1$"),
        (commit_of(3), OutOfOrder, r"iteration 3\b.* 2$"),
        (commit_of(2, branch=1), OutOfOrder, r"branch 1\b.*iteration 2\b.* 0$"),
        (commit_of(2, metrics=[Metric("loss", float("nan"))]), LedgerError, "'loss' of iteration 2 is nan"),
        (commit_of(2, metrics=[Metric("loss", 1), Metric("loss", 2)]), LedgerError, "'loss' .*iteration 2"),
        (commit_of(2, metrics=[Metric("reward", 1, "timing")]), Conflict, "'reward'.* result.* timing"),
        (replace(commit_of(2), control_state={"mean": float("inf")}), LedgerError, "as JSON"),
        (replace(commit_of(2), control_state={"mean": object()}), LedgerError, "object .*JSON"),
        (replace(commit_of(2), event={"mean": float("nan")}), LedgerError, "as JSON"),
    ],
)
def test_a_refused_commit_leaves_no_trace(
    ledger: Ledger, run: str, fence: Fence, bad: object, error: type[LedgerError], words: str
) -> None:
    commit_through(ledger, fence, range(2))
    before = everything(ledger)
    with pytest.raises(error, match=words):
        ledger.commits.commit(fence, bad)  # type: ignore[arg-type]
    assert everything(ledger) == before


def test_the_first_commit_must_be_iteration_0(ledger: Ledger, fence: Fence) -> None:
    assert ledger.commits.latest(fence.run) is None
    with pytest.raises(OutOfOrder, match=r"iteration 1\b.* 0$"):
        ledger.commits.commit(fence, commit_of(1))


def test_a_commit_extends_the_lease(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    clock.advance(8)
    ledger.commits.commit(fence, commit_of(0))
    clock.advance(8)
    with pytest.raises(LeaseHeld):
        ledger.leases.acquire(run, holder("second"), ttl_seconds=10)


def test_an_untracked_commit_adds_nothing_to_the_outbox(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.commits.commit(fence, replace(commit_of(0), trackers=()))
    assert ledger.outbox.counts(run) == (0, 0)
    assert point_count(ledger, run) == 2


@pytest.mark.postgresql
def test_a_rollback_opens_a_branch_and_keeps_the_old_line(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(5))
    ledger.records.checkpoint(fence, CheckpointRow(run, 0, 1, 1, "s1", "m", 1, "w", 0.1))
    ledger.records.checkpoint(fence, CheckpointRow(run, 0, 4, 1, "s4", "m", 1, "w", 0.1))
    with pytest.raises(OutOfOrder, match=r"iteration 5\b.*last: 4"):
        ledger.runs.start_branch(fence, 5, "too far")
    assert ledger.runs.start_branch(fence, 2, "reward fell") == 1
    assert [row.folder for row in ledger.records.checkpoints(run)] == ["s1"]
    latest = ledger.commits.latest(run)
    assert latest is not None
    assert (latest.branch, latest.iteration, latest.state) == (0, 2, {"cursor": 16})

    ledger.commits.commit(fence, commit_of(3, branch=1, metrics=[Metric("reward", 9.0)]))
    assert ledger.metrics.history(run, "reward") == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 9.0)]
    assert ledger.commits.experience_digests(run)[-1] == (3, "experience 1.3")
    assert ledger.metrics.latest(run)["reward"].value == 9.0
    assert ledger.metrics.latest(run)["seconds"].step == 2
    assert point_count(ledger, run) == 11, "the old line's points are kept"

    assert ledger.runs.start_branch(fence, 1, "further back") == 2
    branches = [(row.number, row.parent_branch, row.parent_iteration) for row in ledger.overview.show(run).branches]
    assert branches == [(0, None, None), (1, 0, 2), (2, 0, 1)]
    with pytest.raises(OutOfOrder, match=r"branch 1\b.* 2$"):
        ledger.commits.commit(fence, commit_of(4, branch=1))


def test_a_fork_continues_another_runs_line(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(4))
    fork = ledger.runs.create("toy", {"seed": 1}, "other", 100, reason="fork", parent=Parent(run, 0, 2))
    assert (fork.id, fork.iteration) == ("toy-2", 2)
    mine = ledger.leases.acquire(fork.id, holder("fork"), ttl_seconds=10)
    ledger.commits.commit(mine, commit_of(3, metrics=[Metric("reward", 7.0)]))
    assert ledger.metrics.history(fork.id, "reward") == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 7.0)]
    assert [point.step for point in ledger.metrics.result_points(fork.id)] == [0, 1, 2, 3]
    makers = [tuple(ledger.commits.maker(fork.id, iteration)) for iteration in (2, 3, 4)]
    assert makers == [(run, 0, True), (fork.id, 0, True), (fork.id, 0, False)]
    parent = ledger.commits.at(fork.id, 1)
    assert parent is not None
    assert (parent.run, parent.state) == (run, {"cursor": 8})
    assert ledger.metrics.history(run, "reward")[-1] == (3, 0.3)
    with pytest.raises(OutOfOrder, match=r"iteration 9\b"):
        ledger.runs.create("toy", {}, "other", 100, parent=Parent(run, 0, 9))
    assert len(ledger.runs.list()) == 2


def test_a_fork_sees_its_own_copies_of_inherited_checkpoints(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(2))
    ledger.runs.start_branch(fence, 1, "why")
    commit_through(ledger, fence, range(2, 4), branch=1)
    ledger.records.checkpoint(fence, CheckpointRow(run, 1, 2, 1, "parent's", "m", 1, "w", 0.1))
    fork = ledger.runs.create("toy", {"seed": 1}, "other", 100, reason="fork", parent=Parent(run, 1, 2)).id
    assert ledger.records.checkpoints(fork) == [], "the parent's checkpoints may be pruned"
    mine = ledger.leases.acquire(fork, holder("fork"), ttl_seconds=10)
    ledger.records.checkpoint(mine, CheckpointRow(fork, 1, 2, 0, "copy", "m", 1, "w", 0.0))
    ledger.commits.commit(mine, commit_of(3))
    assert [row.folder for row in ledger.records.checkpoints(fork)] == ["copy"]
    assert [row.folder for row in ledger.records.checkpoints(run)] == ["parent's"]
    assert ledger.runs.start_branch(mine, 2, "again") == 2, "the number of the inherited branch is not reused"
    ledger.records.checkpoint(mine, CheckpointRow(fork, 2, 2, 1, "of the new branch", "m", 1, "w", 0.1))
    assert [row.folder for row in ledger.records.checkpoints(fork)] == ["of the new branch", "copy"]
    assert [row.folder for row in ledger.records.checkpoints(fork, branch=0)] == ["copy"]
    assert ledger.overview.forks(run)[0].run == fork
    (link,) = (link for link in ledger.events.links(fork) if link.kind == "fork")
    assert (link.seq, link.body["run"], link.body["iteration"]) == (1, run, 2)
    assert link.body["audit_head"] in {link.hash for link in ledger.events.links(run)}


def test_a_branch_and_a_revision_are_enqueued_in_their_own_transaction(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(2))

    def tell(number: int) -> list[OutboxEntry]:
        return [OutboxEntry(f"{run}/number-{number}", "tags", {}, 5)]

    ledger.runs.start_branch(fence, 1, "why", tell)
    ledger.runs.add_revision(fence, {}, "digest", "why", 10, tell)
    with pytest.raises(OutOfOrder):
        ledger.runs.start_branch(fence, 9, "why", tell)
    assert [row.id for row in ledger.outbox.claim(fence)][-2:] == [f"{run}/number-1", f"{run}/number-2"]


def test_result_points_are_ordered_by_key_and_step(ledger: Ledger, run: str, fence: Fence) -> None:
    for iteration in range(3):
        points = [Metric("b", 2.0), Metric("a/é", -0.1 * iteration), Metric("Z", 1e-300), Metric("t", 1, "timing")]
        ledger.commits.commit(fence, commit_of(iteration, metrics=points))
    points = list(ledger.metrics.result_points(run))
    assert [(point.key, point.step) for point in points] == [
        (key, step) for key in ("Z", "a/é", "b") for step in range(3)
    ]
    assert points[5].value == -0.2
    assert points[0].value == 1e-300
    classes = {row.key: row.metric_class for row in ledger.series.keys(run)}
    assert classes == {"Z": "result", "a/é": "result", "b": "result", "t": "timing"}
