"""`yatt stop`: requests a stop, waits, and reports a run without a driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import text

from db.core.engine import Fence
from db.core.holder import Holder
from db.ledger import Ledger
from flows.run.home import Home
from tests.ops.conftest import Answer, Yatt
from tests.ops.seeding import seed_run


def test_stop_asks_the_driver(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    assert yatt("stop", run, "-o", "json").document == {"run": run, "state": "running", "asked": True}
    with Ledger.open(home.ledger) as ledger:
        assert ledger.runs.desired_state(run) == "stop"
        assert ledger.events.links(run)[-1].body["reason"] == "yatt stop"


def test_a_run_without_a_driver_is_left_alone(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    assert yatt("stop", run).out == f"{run} is stopped and has no driver: nothing to stop\n"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.runs.desired_state(run) == "run"


def waited(yatt: Yatt, home: Home, run: str, obey: Callable[[Ledger], None]) -> Answer:
    """Returns the result of `yatt stop --wait`, with a driver that calls `obey` as soon as the stop is requested."""

    def driver() -> None:
        with Ledger.open(home.ledger) as ledger:
            while ledger.runs.desired_state(run) != "stop":
                time.sleep(0.02)
            obey(ledger)

    thread = threading.Thread(target=driver)
    thread.start()
    answer = yatt("stop", run, "--wait")
    thread.join()
    return answer


def test_wait_returns_when_the_driver_has_ended(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)

    def end(ledger: Ledger) -> None:
        ledger.runs.set_state(Fence.of_run(run, 1), "stopped", "stop requested")
        ledger.leases.release(Fence.of_run(run, 1))

    answer = waited(yatt, home, run, end)
    assert (answer.code, answer.out) == (0, f"{run} is stopped\n")


def test_wait_ends_if_another_driver_takes_the_run(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)

    def hand_over(ledger: Ledger) -> None:
        window = Holder("far", "boot", 7, 1, "window of it (pid 7 on far)")
        ledger.leases.acquire(run, window, 3600.0, holder_is_gone=lambda _: True)

    answer = waited(yatt, home, run, hand_over)
    assert (answer.code, answer.out) == (0, f"{run} is running\n")
    assert "window of it (pid 7 on far)" in answer.err


def test_wait_reports_a_dead_driver(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)

    def die(ledger: Ledger) -> None:
        with ledger._database.write() as connection:
            connection.execute(text("UPDATE lease SET expires_at = 0, host = 'far' WHERE run = :run"), {"run": run})

    answer = waited(yatt, home, run, die)
    assert (answer.code, answer.out) == (1, "")
    assert f"run {run}: " in answer.err and f"`yatt resume {run}`" in answer.err
