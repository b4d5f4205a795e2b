"""The run list: figures and curves of many runs at once, on the current branch and up to the newest commit."""

from __future__ import annotations

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.metrics import Metric
from tests.db.tools import commit_of, holder


def commit(ledger: Ledger, fence: Fence, iteration: int, branch: int = 0) -> None:
    metrics = [Metric("reward/mean", float(iteration + 100 * branch))]
    metrics += [Metric("evaluation/accuracy", iteration / 10)] if iteration % 4 == 0 else []
    ledger.commits.commit(fence, commit_of(iteration, branch, metrics))


def test_figures_and_curves_follow_the_current_branch(ledger: Ledger, run: str, fence: Fence) -> None:
    other = ledger.runs.create("other", {}, "d", 10).id
    for iteration in range(8):
        commit(ledger, fence, iteration)
    commit(ledger, ledger.leases.acquire(other, holder("other"), 10), 0)
    figures = {line.line.run.id: (line.reward, line.accuracy) for line in ledger.run_list.page().lines}
    assert figures == {run: (7.0, 0.4), other: (0.0, 0.0)}
    curves = ledger.run_list.curves([run, other, "nobody-1"], "reward/mean", 4)
    assert curves == {run: (0.5, 2.5, 4.5, 6.5), other: (0.0, None, None, None)}
    assert ledger.run_list.curves([run], "unknown", 4) == {}
    ledger.runs.start_branch(fence, 3, "reward fell")
    commit(ledger, fence, 4, branch=1)
    (line,) = ledger.run_list.page("toy").lines
    assert (line.reward, line.accuracy) == (104.0, 0.4)
    assert ledger.run_list.curves([run], "reward/mean", 5)[run] == (None, None, None, None, 104.0)
