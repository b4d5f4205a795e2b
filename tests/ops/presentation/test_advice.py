"""The advice after a failure or at the end of a command names only commands that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.core.errors import LedgerUnavailable, RunNotFound
from db.ledger import Ledger
from flows.run.home import Home
from ops.presentation.advice import after_failure, to_continue
from ops.presentation.run_summary import next_commands
from tests.ops.seeding import seed_run
from yatt_core.errors import (
    AlignmentError,
    ConfigurationError,
    DataError,
    DriftError,
    InfrastructureError,
    NumericError,
    ReplayError,
)

CONTINUES = "`yatt resume toy-1` continues"
AGAIN = "`yatt resume toy-1` tries again"


@pytest.mark.parametrize(
    ("error", "begun", "says", "never"),
    [
        (InfrastructureError("x"), True, ["committed work is kept", CONTINUES], []),
        (LedgerUnavailable("x"), False, ["nothing has been committed", AGAIN], ["continues", "is kept"]),
        (KeyboardInterrupt(), True, [CONTINUES], []),
        (ConfigurationError("x"), True, ["committed work is kept", "--set KEY=VALUE"], ["continues", "yatt rm"]),
        (
            ConfigurationError("x"),
            False,
            ["nothing has been committed", "--set KEY=VALUE", "yatt rm toy-1"],
            ["continues"],
        ),
        (DriftError("x"), True, ["committed work is kept"], ["resume"]),
        (ReplayError("x"), True, ["yatt rollback toy-1 --to K"], ["resume`", "continues"]),
        (NumericError("x"), True, ["yatt rollback toy-1 --to K"], ["continues"]),
        (AlignmentError("x"), True, ["yatt rollback toy-1 --to K"], ["continues"]),
        (NumericError("x"), False, [], ["yatt rollback", "yatt resume"]),
        (DataError("x"), True, ["correct it, then `yatt resume toy-1`"], ["continues"]),
    ],
)
def test_after_a_failure(error: BaseException, begun: bool, says: list[str], never: list[str]) -> None:
    advice = after_failure(error, "toy-1", begun)
    assert advice is not None
    assert [words for words in says if words not in advice] == [words for words in never if words in advice] == []


def test_a_run_that_is_gone_needs_no_advice() -> None:
    assert after_failure(RunNotFound("run 'toy-1' was deleted by ann"), "toy-1", True) is None


def test_how_a_run_continues() -> None:
    assert to_continue("toy-1", "stopped", "stop requested", 3, 4) == "yatt resume toy-1"
    assert to_continue("toy-1", "created", "", -1, 4) == "yatt resume toy-1"
    assert to_continue("toy-1", "created", "", 4, 4) == "yatt resume toy-1 --set iterations=N"
    assert to_continue("toy-1", "completed", "target reached", 4, 4) is None
    assert to_continue("toy-1", "paused", "raise it: yatt resume toy-1 --set guards.budget.KEY=HOURS", 3, 4) is None


def test_a_completed_run_is_not_resumed(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        before = next_commands(ledger.runs.find(run), samples=True)
        ledger.runs.set_state(ledger.leases.acquire(run, ledger.leases.holders()[run], 9, lambda _: True), "completed")
        assert before == [*next_commands(ledger.runs.find(run), samples=True), f"yatt resume {run}"]
