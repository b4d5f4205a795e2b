"""`yatt train` and `yatt resume` whose ledger goes away once the session has ended: what they say of it is what it ended as."""

from __future__ import annotations

import json

import pytest
import typer

from db.core.engine import Database
from db.core.errors import LedgerUnavailable
from flows.driver.run_status import SessionOutcome
from flows.run.home import Home
from ops.cli.commands.driving.train import drive
from ops.terminal.options import Output
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.spec.sections.tracking import TrackingSpec

AWAY = "the ledger at db:5432 does not answer"


@pytest.mark.parametrize("output", [Output.TEXT, Output.JSON])
def test_the_session_ends_with_its_own_exit_code(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: Output
) -> None:
    spec = toy_spec().model_copy(update={"tracking": TrackingSpec(enabled=False)})
    run = seed_run(home, spec=spec)
    outcome = SessionOutcome(run=run, state="completed", iteration=4, reason="target reached", exit_code=0)

    def away(*_: object, **__: object) -> None:
        raise LedgerUnavailable(AWAY)

    def ending(**_: object) -> SessionOutcome:
        monkeypatch.setattr(Database, "read", away)
        return outcome

    monkeypatch.setattr("flows.launch.run_session", ending)
    with pytest.raises(typer.Exit) as ended:
        drive(home, run, output)
    told = capsys.readouterr()
    assert ended.value.exit_code == 0
    assert f"run {run} is completed; its results cannot be shown now: {AWAY}" in told.err
    if output is Output.JSON:
        assert json.loads(told.out) == {
            "run": run, "state": "completed", "iteration": 4, "reason": "target reached", "exit_code": 0,
        }  # fmt: skip
