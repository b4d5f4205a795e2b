"""The lease: one holder at a time, decided by the clock and by what is known about the holder's process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from db.core.engine import DatabaseTime, Fence
from db.core.errors import Conflict, Fenced, LeaseHeld, RunNotFound
from db.core.holder import Holder, is_gone, this_process
from db.ledger import Ledger
from tests.db.tools import SimulatedClock, holder
from tests.waiting import wait_until


def test_a_living_holder_keeps_the_lease(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    clock.advance(4)
    with pytest.raises(LeaseHeld, match="first") as held:
        ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    assert (held.value.holder, held.value.expires_in) == ("first", 6.0)
    copy = pickle.loads(pickle.dumps(held.value))
    assert (copy.subject, copy.holder, copy.expires_in, str(copy)) == (f"run/{run}", "first", 6.0, str(held.value))
    ledger.leases.renew(fence, ttl_seconds=10)


@pytest.mark.postgresql
def test_the_holders_are_those_of_unreleased_leases(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    clock.advance(60)
    assert ledger.leases.holders() == {run: holder("first")}
    ledger.leases.release(fence)
    assert ledger.leases.holders() == {}


@pytest.mark.postgresql
def test_an_expired_lease_is_taken_and_the_term_increases(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    clock.advance(9.999)
    with pytest.raises(LeaseHeld):
        ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    clock.advance(0.001)
    second = ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    assert second == Fence.of_run(run, fence.term + 1)
    with pytest.raises(Fenced, match=f"term {fence.term} .*term {second.term} "):
        ledger.leases.renew(fence, ttl_seconds=10)


def test_renewal_extends_the_lease(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    clock.advance(8)
    ledger.leases.renew(fence, ttl_seconds=10)
    clock.advance(8)
    with pytest.raises(LeaseHeld):
        ledger.leases.acquire(run, holder("second"), ttl_seconds=10)


def test_a_late_holder_continues_if_no_other_took_over(ledger: Ledger, fence: Fence, clock: SimulatedClock) -> None:
    clock.advance(60)
    ledger.leases.renew(fence, ttl_seconds=10)


def test_a_holder_that_is_gone_is_replaced_at_once(ledger: Ledger, run: str, fence: Fence) -> None:
    asked = []
    second = ledger.leases.acquire(run, holder("second"), 10, holder_is_gone=lambda who: asked.append(who) or True)
    assert second.term == fence.term + 1
    assert asked == [holder("first")]


def test_release_ends_the_fence_and_frees_the_run(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.leases.release(fence)
    with pytest.raises(Fenced, match=f"{run}: .*term {fence.term}"):
        ledger.leases.renew(fence, ttl_seconds=10)
    assert ledger.leases.acquire(run, holder("second"), ttl_seconds=10).term == fence.term + 1


def test_drivers_lost_in_a_row_are_counted_within_a_period(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    assert ledger.leases.lost_in_a_row(run, "driver", 0) == 0
    times = []
    for number in range(3):
        clock.advance(11)
        fence = ledger.leases.acquire(run, holder(f"driver {number}"), ttl_seconds=10)
        times.append(ledger.events.of_kind(run, "lease_taken")[-1].at)
    assert ledger.leases.lost_in_a_row(run, "driver", 0) == 2, "the fixture's holder was none"
    assert ledger.leases.lost_in_a_row(run, "driver", times[2]) == 1
    clock.advance(11)
    ledger.leases.release(ledger.leases.acquire(run, holder("keeper"), ttl_seconds=10))
    fence = ledger.leases.acquire(run, holder("driver 4"), ttl_seconds=10)
    assert ledger.leases.lost_in_a_row(run, "driver", 0) == 3, "another holder in between ends no row"
    ledger.leases.release(fence)
    ledger.leases.acquire(run, holder("driver after an orderly end"), ttl_seconds=10)
    assert ledger.leases.lost_in_a_row(run, "driver", 0) == 0


def test_segments_follow_the_terms(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    for _ in range(2):  # the answer to the first may be lost
        ledger.leases.start_session(fence, "id-1", "brave-otter")
    with pytest.raises(Conflict, match=f"{run}: .*term {fence.term}"):
        ledger.leases.start_session(fence, "id-1b", "brave-otter")
    clock.advance(20)
    second = ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    ledger.leases.start_session(second, "id-2", "calm-heron")
    ledger.leases.end_session(second, "completed")
    sessions = ledger.overview.show(run).sessions
    assert [(session.term, session.flow_run_name, session.outcome) for session in sessions] == [
        (1, "brave-otter", "lost"),
        (2, "calm-heron", "completed"),
    ]


def test_an_unknown_run_has_no_lease(ledger: Ledger) -> None:
    with pytest.raises(RunNotFound, match="nowhere-1"):
        ledger.leases.acquire("nowhere-1", holder("first"), ttl_seconds=10)
    with pytest.raises(Fenced, match="nowhere-1"):
        ledger.leases.renew(Fence.of_run("nowhere-1", 1), ttl_seconds=10)


@pytest.mark.postgresql
def test_the_database_has_its_own_clock(ledger: Ledger) -> None:
    with ledger._database.read() as connection:
        now = connection.execute(select(DatabaseTime())).scalar_one()
    assert isinstance(now, int)
    assert abs(now - time.time() * 1000) < 2000


def test_is_gone_recognizes_this_process_and_assumes_nothing_of_other_hosts() -> None:
    me = this_process("test")
    assert "test" in me.text
    assert str(os.getpid()) in me.text
    assert not is_gone(me)
    assert is_gone(replace(me, process_start=me.process_start - 1)), "another process with the same pid"
    assert is_gone(replace(me, boot_id="the boot before")), "the host was rebooted"
    assert not is_gone(replace(me, host="elsewhere", pid=2**22 + 1)), "unknown on this host"


def stat_of(pid: int) -> list[str]:
    """Returns the fields of a process's stat file, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def holder_at(pid: int) -> Holder:
    return replace(this_process(), pid=pid, process_start=int(stat_of(pid)[19]))


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    theirs = holder_at(child.pid)
    assert not is_gone(theirs)
    child.kill()
    wait_until(lambda: is_gone(theirs), seconds=30.0)  # dead, but not yet reaped
    child.wait()
    assert is_gone(theirs)


def test_a_holder_whose_main_thread_ended_lives_until_the_others_end() -> None:
    outlived = (
        "import ctypes, threading; threading.Thread(target=threading.Event().wait).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", outlived]) as child:
        try:
            theirs = holder_at(child.pid)
            wait_until(lambda: stat_of(child.pid)[0] == "Z", seconds=30.0)
            assert not is_gone(theirs)
        finally:
            child.kill()
        wait_until(lambda: is_gone(theirs), seconds=30.0)
