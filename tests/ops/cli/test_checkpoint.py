"""`yatt checkpoint`: asks the driver, waits, and refuses a run that nobody drives."""

from __future__ import annotations

import threading
import time

import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from db.write.waits import WaitRow
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run


def test_the_driver_is_asked_once(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    for _ in range(2):
        assert yatt("checkpoint", run, "-o", "json").document == {
            "run": run, "asked": True, "iteration": None, "newest": None, "waiting": None,
        }  # fmt: skip
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.events.of_kind(run, "checkpoint_requested")) == 1


OLDER = "the newest is that of iteration 1, and its last commit is iteration 2"


def checkpoint_of(run: str, iteration: int) -> CheckpointRow:
    return CheckpointRow(run, 0, iteration, 1, f"checkpoints/i{iteration}", "m", 1, "w", 0.1)


@pytest.mark.parametrize(
    ("kept", "returned", "says"),
    [
        ([], None, "once it gives its devices back or goes on; it has none yet"),
        ([1], None, f"once it gives its devices back or goes on; {OLDER}"),
        ([1], 5, f"once it goes on; {OLDER}"),
        ([1, 2], None, "once it goes on; the newest is that of iteration 2, its last commit"),
    ],
)
def test_of_a_run_that_waits_the_newest_checkpoint_is_told(
    yatt: Yatt, home: Home, kept: list[int], returned: int | None, says: str
) -> None:
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        for iteration in kept:
            ledger.records.checkpoint(Fence.of_run(run, 1), checkpoint_of(run, iteration))
        ledger.waits.record(Fence.of_run(run, 1), WaitRow(run, "judge 'kind'", "status 503", 1, 2, 1, returned))
    answer = yatt("checkpoint", run)
    assert answer.code == 0 and f"which it takes {says}; it waits for judge 'kind' since" in answer.out
    document = yatt("checkpoint", run, "-o", "json").document
    assert (document["newest"], document["waiting"]["dependency"]) == (max(kept, default=None), "judge 'kind'")
    assert document["iteration"] is None


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
            ledger.checkpoint_requests.meet(Fence.of_run(run, 1), request, 4)

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
            ledger.leases.release(Fence.of_run(run, 1))

    thread = threading.Thread(target=driver)
    thread.start()
    answer = yatt("checkpoint", run, "--wait")
    thread.join()
    assert answer.code == 1 and f"`yatt resume {run}`" in answer.err
