"""Requests to stop: which phases they may interrupt, and what a second signal means."""

from __future__ import annotations

import os
import signal
import time

import pytest

from flows.driver.deadlines import deadline
from flows.driver.stopping import StopNow, StopRequests, ended_in_order, graceful_signals
from yatt_core.spec.sections.recovery import RecoverySpec


def test_without_a_limit_no_phase_is_interrupted() -> None:
    requests = StopRequests()
    requests.ask()
    with requests.phase("collect"):
        requests.interrupt()
    assert requests.asked and not requests.overdue


def test_an_overdue_stop_skips_phases_that_may_be_interrupted() -> None:
    requests = StopRequests()
    requests.ask(within=requests.reserve)
    with requests.phase("learn"):
        requests.interrupt()
    with pytest.raises(StopNow), requests.phase("collect"):
        raise AssertionError("the phase does not begin")


def test_the_shorter_limit_counts() -> None:
    requests = StopRequests()
    requests.ask(within=3600.0)
    assert not requests.overdue
    requests.ask(within=0.0)
    requests.ask(within=3600.0)
    assert requests.overdue


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_requests_a_stop_and_the_second_ends(number: int) -> None:
    requests = StopRequests()
    said = []
    with pytest.raises(KeyboardInterrupt), graceful_signals(requests, None, said.append):
        os.kill(os.getpid(), number)
        assert requests.asked and said
        os.kill(os.getpid(), number)


def test_a_running_phase_is_interrupted_when_the_grace_period_ends() -> None:
    requests = StopRequests()
    started = time.monotonic()
    with (
        pytest.raises(StopNow),
        graceful_signals(requests, requests.reserve, lambda text: None),
        requests.phase("collect"),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        while time.monotonic() - started < 30:
            requests.interrupt()
            time.sleep(0.05)


def test_a_shield_delays_the_second_signal_until_the_next_check() -> None:
    requests = StopRequests()
    with graceful_signals(requests, None, lambda text: None), pytest.raises(KeyboardInterrupt):
        with requests.shielded():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        with requests.phase("learn"):
            raise AssertionError("the phase does not begin")


def test_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    with graceful_signals(StopRequests(), None, lambda text: None):
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_signal_before_the_flow_handles_signals_ends_cleanly() -> None:
    with pytest.raises(KeyboardInterrupt), ended_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_existing_handler_is_kept() -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with ended_in_order():
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_deadlines_follow_history_within_their_bounds() -> None:
    spec = RecoverySpec(phase_deadline_seconds=600, deadline_factor=5, deadline_floor_seconds=60)
    assert deadline([1.0, 2.0], spec) == 600, "two values are too few"
    assert deadline([1.0, 2.0, 3.0], spec) == 60
    assert deadline([1.0, 20.0, 3.0], spec) == 100
    assert deadline([1000.0] * 20, spec) == 600


def test_the_first_reason_to_stop_is_kept() -> None:
    requests = StopRequests()
    requests.ask(reason="its window is over")
    requests.ask()
    assert requests.reason == "its window is over"
