"""The newest values of a run's metrics: what happened in an earlier iteration only is no value of now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.metrics import RESULT, TIMING, Metric
from flows.run.home import Home
from ops.queries.compare import compare
from ops.queries.run import run_view
from ops.queries.series import newest_values
from tests.ops.conftest import Yatt
from tests.ops.seeding import commit_of, seal_iteration, seed_run

HAPPENED = (
    Metric("unscored/judge/infrastructure", 3.0, RESULT),
    Metric("unread_judgements/judge/cut", 2.0, RESULT),
    Metric("update/skipped", 1.0, RESULT),
    Metric("seconds/waiting", 40.0, TIMING),
    Metric("endpoints/judge/status/503", 4.0, TIMING),
)


@pytest.fixture
def run(home: Home) -> str:
    """A run in whose first iteration some things happened that did not happen in the second one."""
    run = seed_run(home, committed=0, ends=False)
    add_iteration(home, run, 1, (*HAPPENED, Metric("evaluation/loss", 0.5, RESULT)))
    add_iteration(home, run, 2, ())
    return run


def add_iteration(home: Home, run: str, iteration: int, more: Sequence[Metric]) -> None:
    with Ledger.open(home.ledger) as ledger:
        seal_iteration(home, ledger, Fence.of_run(run, 1), iteration)
        plain = commit_of(iteration)
        ledger.commits.commit(Fence.of_run(run, 1), replace(plain, metrics=[*plain.metrics, *more]))


def test_what_happened_only_earlier_is_no_newest_value(home: Home, run: str, yatt: Yatt) -> None:
    names = {metric.key for metric in HAPPENED}
    with Ledger.open(home.ledger) as ledger:
        assert names.isdisjoint(newest_values(ledger, run))
        assert newest_values(ledger, run)["evaluation/loss"] == 0.5, "an evaluation is not due in each iteration"
        assert names.isdisjoint(run_view(ledger, run).metrics)
        assert names.isdisjoint(row.key for row in compare(ledger, [run]).metrics)
    assert names.isdisjoint(yatt("show", run, "-o", "json").document["metrics"])


def test_what_has_just_happened_is(home: Home, run: str) -> None:
    add_iteration(home, run, 3, HAPPENED)
    with Ledger.open(home.ledger) as ledger:
        assert newest_values(ledger, run).items() >= {metric.key: metric.value for metric in HAPPENED}.items()
