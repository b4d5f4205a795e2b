"""A run that waits: `yatt show`, `yatt resume --now`, and what is known while the ledger itself is away."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.waits import WaitRow
from flows.run.home import Home
from flows.run.waiting_file import WaitingFile, read_waiting, write_waiting
from ops.queries.run import run_view
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run

JUDGE = "judge 'kind' at https://judge.example/v1"


def wait(home: Home, run: str, returned_at: int | None = None) -> None:
    now = round(1000 * time.time())
    with Ledger.open(home.ledger) as ledger:
        fence = Fence.of_run(run, 1)
        ledger.waits.record(fence, WaitRow(run, JUDGE, "status 503", now - 60_000, now + 9_000, 4, returned_at))
        ledger.runs.set_state(fence, "waiting", "waiting for a judge")


def test_show_says_what_a_run_waits_for(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    assert yatt("show", run, "-o", "json").document["waiting"] is None
    wait(home, run, returned_at=round(1000 * time.time()))
    shown = yatt("show", run).out
    assert f"{run} is waiting, " in shown and f"for {JUDGE} since " in shown
    assert "next try in " in shown and "devices given back at " in shown and "status 503" in shown
    assert yatt("show", run, "-o", "json").document["waiting"]["dependency"] == JUDGE
    assert "waiting" in yatt("runs", "--state", "waiting").out


def test_a_successor_does_not_inherit_what_a_lost_driver_waited_for(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    wait(home, run)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process("the next"), 60, holder_is_gone=lambda holder: True)
    assert yatt("show", run, "-o", "json").document["waiting"] is None


def test_resume_now_has_a_driver_that_waits_try_at_once(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    wait(home, run)
    answer = yatt("resume", run, "--now")
    assert (answer.code, answer.out) == (0, f"{run} waits for {JUDGE}; its driver looks at once whether that is back\n")
    with Ledger.open(home.ledger) as ledger:
        assert [ledger.waits.take(Fence.of_run(run, 1)) for _ in range(2)] == [True, False]


def test_a_lost_driver_waits_for_nothing_and_tries_nothing(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    wait(home, run)
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.execute(text("UPDATE lease SET expires_at = 1 WHERE run = :run"), {"run": run})
    shown = yatt("show", run)
    assert f"{run} is waiting, driver lost" in shown.out and "next try" not in shown.out
    facts = yatt("show", run, "-o", "json").document
    assert (facts["waiting"], facts["driver_lost"]) == (None, True)
    with Ledger.open(home.ledger) as ledger:
        assert run_view(ledger, run).wait is None
        assert not ledger.waits.ask(run), "nobody would try, so `yatt resume --now` starts a driver"


def test_show_reads_the_runs_folder_while_the_ledger_is_away(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = seed_run(home, ends=False)
    folder = home.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    now = round(1000 * time.time())
    waiting = WaitingFile(
        run=run,
        dependency="the ledger",
        reason="connection refused",
        since=now,
        next_try_at=now + 5000,
        iteration=7,
        holder=this_process("yatt driver"),
    )
    write_waiting(folder, waiting)
    assert read_waiting(folder) == waiting
    monkeypatch.setenv("YATT_LEDGER", "postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    answer = yatt("show", run)
    assert answer.code == 0 and f"{run} is waiting, last known commit 7" in answer.out
    assert "for the ledger since " in answer.out and "connection refused" in answer.out
    assert "the ledger does not answer" in answer.err
    unknown = yatt("show", "other-1")
    assert unknown.code == 1 and "last known" not in unknown.out
