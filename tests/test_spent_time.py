"""A process's account of its time: parts add up to the time worked, and no moment counts twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from yatt_core.spent_time import DATA, ENGINE, FURTHER, OTHER, PARTS, RAY, WAITING, SpentTime, TimeAccount, spent


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def account(clock: Hands) -> TimeAccount:
    return TimeAccount(clock)


def seconds(taken: tuple[SpentTime, ...]) -> dict[tuple[str, ...], float]:
    return {(*one.path, one.kind): one.seconds for one in taken}


def test_a_part_does_not_contain_the_parts_within_it_and_all_add_up_to_the_time_worked(
    account: TimeAccount, clock: Hands
) -> None:
    with account.work("learn", kind=ENGINE):
        clock.move(1.0)
        with spent(DATA, "read"):
            clock.move(2.0)
            with spent(DATA, "fsync"):
                clock.move(4.0)
            clock.move(8.0)
        clock.move(16.0)
    clock.move(32.0)
    found = account.take()
    assert seconds(found) == {
        ("learn", ENGINE): 17.0,
        ("learn", "read", DATA): 10.0,
        ("learn", "read", "fsync", DATA): 4.0,
    }
    assert sum(one.seconds for one in found) == 31.0, "the time without work belongs to nothing"
    assert {one.calls for one in found} == {1}


def test_what_is_done_outside_of_work_is_not_counted(account: TimeAccount, clock: Hands) -> None:
    with spent(DATA, "fsync"):
        clock.move(1.0)
    assert account.take() == ()


def test_while_one_thread_computes_the_waiting_of_another_does_not_count(account: TimeAccount, clock: Hands) -> None:
    waits = threading.Event()
    computed = threading.Event()

    def wait() -> None:
        with account.work("collect"), spent(WAITING, "answers"):
            waits.set()
            assert computed.wait(30.0)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(30.0)
    clock.move(1.0)
    with account.work("generate", kind=ENGINE):
        clock.move(2.0)
    computed.set()
    thread.join()
    assert seconds(account.take()) == {
        ("collect", "answers", WAITING): 1.0,
        ("generate", ENGINE): 2.0,
        ("collect", OTHER): 0.0,
    }


def test_calls_that_overlap_in_an_event_loop_count_each_moment_once(account: TimeAccount, clock: Hands) -> None:
    first = account.work("generate", "version 3", kind=ENGINE, alone=True)
    second = account.work("generate", "version 3", kind=ENGINE, alone=True)
    first.__enter__()
    clock.move(1.0)
    second.__enter__()
    with spent(DATA, "fsync"):
        clock.move(1.0)
    first.__exit__(None, None, None)
    clock.move(1.0)
    second.__exit__(None, None, None)
    (one,) = account.take()
    assert one == SpentTime(("generate", "version 3"), ENGINE, 3.0, 2)


def test_what_is_taken_in_the_middle_is_not_counted_again(account: TimeAccount, clock: Hands) -> None:
    with account.work("driver"):
        with spent(RAY, "answers"):
            clock.move(1.0)
            assert seconds(account.take()) == {("driver", "answers", RAY): 1.0}
            clock.move(2.0)
        clock.move(4.0)
    assert seconds(account.take()) == {("driver", "answers", RAY): 2.0, ("driver", OTHER): 4.0}


def test_a_part_that_fails_has_ended(account: TimeAccount, clock: Hands) -> None:
    with account.work("learn", kind=ENGINE):
        with pytest.raises(OSError, match="full"), spent(DATA, "fsync"):
            clock.move(1.0)
            raise OSError("full")
        clock.move(2.0)
    assert seconds(account.take()) == {("learn", "fsync", DATA): 1.0, ("learn", ENGINE): 2.0}


def test_a_function_can_be_a_part(account: TimeAccount, clock: Hands) -> None:
    @spent(DATA, "read")
    def read(seconds: float) -> float:
        clock.move(seconds)
        return seconds

    with account.work("prepare"):
        assert read(1.0) + read(2.0) == 3.0
    assert SpentTime(("prepare", "read"), DATA, 3.0, 2) in account.take()


def test_more_parts_than_an_account_holds_are_counted_together(account: TimeAccount, clock: Hands) -> None:
    with account.work("work"):
        for number in range(PARTS + 5):
            with spent(DATA, f"part {number}"):
                clock.move(1.0)
    found = account.take()
    assert len(found) == PARTS + 1
    assert sum(one.seconds for one in found) == PARTS + 5
    assert {one.path for one in found if one.calls > 1} == {FURTHER}


def test_a_generator_that_another_thread_closes_leaves_this_threads_work_alone(
    account: TimeAccount, clock: Hands
) -> None:
    def serve() -> Iterator[int]:
        with account.work("generate", kind=ENGINE):
            yield 1

    begun: list[Iterator[int]] = []

    def begin() -> None:
        stream = serve()
        next(stream)
        begun.append(stream)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    with account.work("collect"):
        begun.pop().close()  # type: ignore[attr-defined]
        with spent(DATA, "seal"):
            clock.move(1.0)
    assert seconds(account.take())["collect", "seal", DATA] == 1.0


def test_the_parts_of_any_number_of_threads_never_add_up_to_more_than_the_time() -> None:
    ticks = iter(range(1_000_000))
    lock = threading.Lock()
    read: list[int] = []

    def clock() -> float:
        with lock:
            read.append(next(ticks))
            return float(read[-1])

    account = TimeAccount(clock)

    def work(number: int) -> None:
        for _ in range(50):
            with account.work(f"call {number}", kind=ENGINE if number % 2 else OTHER), spent(DATA, "read"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.0 < sum(one.seconds for one in account.take()) <= read[-1] - read[0]
    assert all(after > before for before, after in pairwise(read))


def test_garbage_that_is_collected_while_the_account_is_charged_may_charge_it_too() -> None:
    held = list[Iterator[None]]()
    moments = 0

    def clock() -> float:
        nonlocal moments
        moments += 1
        if moments == 4 and held:
            held.pop().close()  # as a collection closes an abandoned generator
        return float(moments)

    account = TimeAccount(clock)

    def stream() -> Iterator[None]:
        with account.work("generate", kind=ENGINE):
            yield

    abandoned = stream()
    next(abandoned)
    held.append(abandoned)
    ended = threading.Event()

    def work() -> None:
        with account.work("learn", kind=ENGINE):
            pass
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert ended.wait(10), "the thread waits for itself"
    assert {one.path for one in account.take()} == {("generate",), ("learn",)}
