"""Threads that share an engine: one steps for all, and exclusive work runs between two steps."""

from __future__ import annotations

import threading
import time
from collections import deque

import pytest

from yatt_core.engines.rollout.served.engine_lock import EngineLock

SECONDS = 20.0


def test_a_waiting_thread_takes_the_step() -> None:
    lock = EngineLock()
    arrived = deque[int]()
    steps = []

    def step() -> None:
        steps.append(len(steps))
        if len(steps) == 3:
            arrived.append(7)

    while not arrived:
        lock.wait_for(arrived, step)
    assert steps == [0, 1, 2]
    lock.wait_for(arrived, step)
    assert len(steps) == 3, "no step is taken for what has already arrived"


def test_one_thread_steps_for_all_waiting_ones() -> None:
    lock = EngineLock()
    entered = threading.Event()
    go_on = threading.Event()
    first = deque[int]()
    second = deque[int]()
    at_once = []

    def step() -> None:
        at_once.append(threading.active_count())
        entered.set()
        assert go_on.wait(SECONDS)
        first.append(1)
        second.append(2)

    threads = [threading.Thread(target=lock.wait_for, args=(mine, step)) for mine in (first, second)]
    threads[0].start()
    assert entered.wait(SECONDS)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert (list(first), list(second), len(at_once)) == ([1], [2], 1)


def test_exclusive_work_waits_for_the_end_of_a_step() -> None:
    lock = EngineLock()
    entered = threading.Event()
    go_on = threading.Event()
    log = list[str]()

    def step() -> None:
        entered.set()
        assert go_on.wait(SECONDS)
        log.append("step")

    def update() -> None:
        with lock.alone():
            log.append("alone")

    stepping = threading.Thread(target=lock.wait_for, args=(deque(), step))
    updating = threading.Thread(target=update)
    stepping.start()
    assert entered.wait(SECONDS)
    updating.start()
    go_on.set()
    for thread in (stepping, updating):
        thread.join(SECONDS)
    assert log == ["step", "alone"]


def test_exclusive_work_comes_before_the_next_step_of_a_thread_that_steps_on_and_on() -> None:
    lock = EngineLock()
    log = list[str]()

    def work() -> None:
        with lock.alone():
            log.append("alone")

    working = threading.Thread(target=work)

    def step() -> None:
        if not log:
            working.start()
            until = time.monotonic() + SECONDS
            while not lock._asking and time.monotonic() < until:
                time.sleep(0.001)
        log.append("step")

    for _ in range(3):
        lock.wait_for(deque(), step)
    working.join(SECONDS)
    assert log == ["step", "alone", "step", "step"]


def test_a_failed_step_releases_the_lock() -> None:
    lock = EngineLock()

    def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        lock.wait_for(deque(), fail)
    with lock.alone():
        pass
