"""`yatt checkpoint`: asks the driver, waits, and refuses a run that nobody drives."""

from __future__ import annotations

import threading
import time

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run


def test_the_driver_is_asked_once(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    for _ in range(2):
        assert yatt("checkpoint", run, "-o", "json").document == {"run": run, "asked": True, "iteration": None}
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.events.of_kind(run, "checkpoint_requested")) == 1


def test_a_run_without_a_driver_is_refused(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    answer = yatt("checkpoint", run)
    assert answer.code == 2 and f"run {run}: it is stopped and has no driver" in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert ledger.checkpoint_requests.pending(run) is None


def test_wait_names_the_checkpoint(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)

    def driver() -> None:
        with Ledger.open(home.ledger) as ledger:
            while (request := ledger.checkpoint_requests.pending(run)) is None:
                time.sleep(0.02)
            ledger.checkpoint_requests.meet(Fence(run, 1), request, 4)

    thread = threading.Thread(target=driver)
    thread.start()
    answer = yatt("checkpoint", run, "--wait")
    thread.join()
    assert (answer.code, answer.out) == (0, f"{run}: the checkpoint of iteration 4 is durable\n")


def test_wait_ends_with_the_driver(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)

    def driver() -> None:
        with Ledger.open(home.ledger) as ledger:
            while ledger.checkpoint_requests.pending(run) is None:
                time.sleep(0.02)
            ledger.leases.release(Fence(run, 1))

    thread = threading.Thread(target=driver)
    thread.start()
    answer = yatt("checkpoint", run, "--wait")
    thread.join()
    assert answer.code == 1 and f"`yatt resume {run}`" in answer.err
