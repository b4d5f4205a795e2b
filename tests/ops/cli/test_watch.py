"""`yatt watch`: what it shows, when it ends, and with which exit code; it writes nothing."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from db.core.engine import Fence
from db.core.holder import Holder, this_process
from db.ledger import Ledger
from flows.run.home import Home
from flows.run.lease import KEEPER
from ops.cli.commands.inspection import watch
from ops.cli.commands.inspection.run_picture import doing, line, picture
from ops.queries.watch import watched
from tests.dashboard.seeding import alarm
from tests.ops.conftest import Yatt
from tests.ops.seeding import commit_of, seed_run


@pytest.mark.parametrize(
    ("state", "code"), [("completed", 0), ("stopped", 0), ("created", 0), ("failed", 1), ("paused", 4)]
)
def test_it_ends_at_once_with_the_state_of_a_run_that_nobody_drives(
    yatt: Yatt, home: Home, state: str, code: int
) -> None:
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        ledger.runs.set_state(Fence.of_run(run, 1), state, "for a reason")
        ledger.leases.release(Fence.of_run(run, 1))
    answer = yatt("watch")
    assert answer.code == code and "iteration 2/4" in answer.out and "for a reason" in answer.out
    assert yatt("watch", run, "--once").code == 0


def test_it_follows_a_run_to_its_end_in_lines(yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.02)
    run = seed_run(home, ends=False)
    seen = threading.Event()
    monkeypatch.setattr(watch, "_tell_alarms", lambda *_: seen.set())

    def drive() -> None:
        assert seen.wait(60)
        with Ledger.open(home.ledger) as ledger:
            ledger.commits.commit(Fence.of_run(run, 1), commit_of(3))
            ledger.runs.set_state(Fence.of_run(run, 1), "stopped", "stop requested")
            ledger.leases.release(Fence.of_run(run, 1))

    driver = threading.Thread(target=drive)
    driver.start()
    answer = yatt("watch", run)
    driver.join()
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0].startswith("iteration 2/4  running") and lines[-1].startswith("iteration 3/4  stopped")


def test_a_lost_driver_ends_it(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, Holder("far-away", "boot", 1, 1, "yatt driver of it"), 0.001)
        assert fence.term == 2
    answer = yatt("watch", run)
    assert answer.code == 1 and f"yatt resume {run}" in answer.err


def test_a_driver_stays_lost_once_the_keeper_has_released_its_lease(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.renew(Fence.of_run(run, 1), -1)
        kept = ledger.leases.acquire(run, this_process(KEEPER), 60, lambda holder: True)
        assert yatt("watch", run).code == 1, "the keeper does not drive"
        ledger.leases.release(kept)
    answer = yatt("watch", run)
    assert answer.code == 1 and f"yatt resume {run}" in answer.err
    assert yatt("runs", "-o", "json").document["runs"][0]["driver"] == "lost"
    assert yatt("show", run, "-o", "json").document["driver"] == "lost"


def test_the_picture_has_phase_curves_devices_and_alarms(home: Home) -> None:
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        fence = Fence.of_run(run, 1)
        ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 3, "collect"))
        ledger.alarms.record(fence, alarm("entropy", "entropy is 0.01 nats [bold]"))
        seen = watched(ledger, run)
        assert (doing(seen), seen.begun) == ("collect", True)
        assert "collect" in line(seen) and "reward 0.200" in line(seen)
        for width in (80, 120):
            console = Console(width=width, record=True, file=io.StringIO())
            console.print(picture(seen))
            text = console.export_text()
            assert max(map(len, text.splitlines())) <= width
            for words in (run, "running", "2/4", "collect for", "▁█", "before training 0.250, now 0.500", "[bold]"):
                assert words in text
            assert "SFT" not in text
        ledger.phases.fail_open(fence, "x")
        ledger.runs.set_state(fence, "stopped", "stop requested")
        assert doing(watched(ledger, run)) == "ending"
        ledger.leases.release(fence)
        ledger.leases.acquire(run, Holder("far-away", "boot", 1, 1, "yatt driver of it"), 60)
        assert doing(watched(ledger, run)) == "starting"
