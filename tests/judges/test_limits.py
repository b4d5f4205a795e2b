"""The limits of an endpoint and its circuit, in simulated time, and the file by which processes share them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.file_lock import file_lock
from yatt_core.judges import shared_state
from yatt_core.judges.limits import (
    BURST_SECONDS,
    FAILURES_THAT_OPEN,
    LONGEST_HOLD_SECONDS,
    EndpointState,
    RateLimits,
)
from yatt_core.judges.shared_state import SharedState, state_file
from yatt_core.outage import JITTER, LONGEST_SECONDS

START = 1e9


@given(
    st.integers(1, 600),
    st.integers(100, 60_000),
    st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 3000)), min_size=1, max_size=60),
)
def test_no_more_is_sent_in_any_time_than_its_limit_and_a_burst(
    requests: int, tokens: int, arrivals: list[tuple[float, int]]
) -> None:
    state = EndpointState()
    rates = RateLimits(requests, tokens)
    now = START
    sent: list[tuple[float, int]] = []
    for pause, amount in arrivals:
        now += pause
        sent.append((now + state.take(rates, amount, now), amount))
    assert [at for at, _ in sent] == sorted(at for at, _ in sent), "nobody overtakes"
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            lasted = sent[last][0] - sent[first][0]
            count = last - first + 1
            largest = max(amount for _, amount in sent[first : last + 1])
            amount = sum(amount for _, amount in sent[first : last + 1])
            assert count <= requests * lasted / 60 + max(1.0, requests * BURST_SECONDS / 60) + 1e-3
            assert amount <= tokens * lasted / 60 + max(largest, tokens * BURST_SECONDS / 60) + largest * 1e-3 + 1.0


@given(st.integers(1, 600), st.integers(2, 200))
def test_those_who_wait_are_sent_at_the_full_rate(requests: int, count: int) -> None:
    state = EndpointState()
    rates = RateLimits(requests, None)
    waits = [state.take(rates, 1, START) for _ in range(count)]
    assert waits[0] == 0.0 and waits[-1] <= (count - 1) * 60.0 / requests + 1e-6


def test_what_the_endpoint_counts_replaces_the_estimate_and_what_was_not_sent_is_given_back() -> None:
    rates = RateLimits(60, 6000)
    state = EndpointState()
    state.take(rates, 3000, START)
    state.settle(rates, 3000, 100)
    assert state.tokens_full_at == pytest.approx(START + 1.0)
    before = EndpointState(**state.to_json())
    state.take(rates, 500, START)
    state.give_back(rates, 500)
    assert state.requests_full_at == pytest.approx(before.requests_full_at)
    assert state.tokens_full_at == pytest.approx(before.tokens_full_at)


def test_an_endpoint_that_wants_to_be_left_alone_is_by_all_and_not_for_ever() -> None:
    state = EndpointState()
    rates = RateLimits(600, None)
    state.hold(START + 30.0, START)
    state.hold(START + 10.0, START)
    assert [state.take(rates, 1, START + 5.0) for _ in range(3)] == [25.0] * 3
    late = [state.take(rates, 1, START + 5.0) for _ in range(100)]
    assert late[-1] > 25.0, "the burst after it is no larger than others"
    state.hold(START + 1e12, START)
    assert state.held_seconds(START) == LONGEST_HOLD_SECONDS


@given(st.lists(st.sampled_from(["fails", "answers", "probe"]), max_size=60), st.floats(0.0, 0.999))
def test_a_circuit_opens_after_failures_in_a_row_and_lets_one_probe_through(events: list[str], chance: float) -> None:
    state = EndpointState()
    now = START
    in_a_row = 0
    for event in events:
        if event == "answers":
            state.note_answer()
            in_a_row = 0
        elif event == "fails":
            state.note_failure(now, was_probe=False, chance=chance)
            in_a_row += 1
        elif state.is_open:
            now = max(now, state.probe_at)
            assert state.take_probe(now, 10.0)
            assert not state.take_probe(now, 10.0), "one at a time"
            state.note_failure(now, was_probe=True, chance=chance)
            in_a_row += 1
            assert 0.0 < state.probe_at - now <= LONGEST_SECONDS * (1 + JITTER)
        assert state.is_open == (in_a_row >= FAILURES_THAT_OPEN)


def test_a_clock_that_is_set_back_keeps_nobody_waiting() -> None:
    clock = [START]
    shared = SharedState(None, now=lambda: clock[0])
    shared.change(lambda state, now: state.hold(now + 20.0, now))
    clock[0] -= 86_400.0
    assert shared.change(lambda state, now: state.held_seconds(now)) == pytest.approx(20.0)


TAKES = """
import sys
from pathlib import Path
from yatt_core.judges.limits import RateLimits
from yatt_core.judges.shared_state import SharedState
shared = SharedState(Path(sys.argv[1]), now=lambda: 1e9)
for _ in range(100):
    shared.change(lambda state, now: state.take(RateLimits(60, None), 1, now))
"""


def test_processes_share_a_limit_and_lose_no_request(tmp_path: Path) -> None:
    path = tmp_path / "endpoints" / "one.json"
    both = [subprocess.Popen([sys.executable, "-c", TAKES, str(path)]) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert SharedState(path).seen().requests_full_at == 1e9 + 200.0


def test_a_file_that_cannot_be_read_counts_as_new(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    for text in ("{", "[]", '{"failures": "many"}', json.dumps(EndpointState(probe_at=math.nan).to_json()), ""):
        path.write_text(text)
        shared = SharedState(path)
        assert replace(shared.seen(), changed_at=0.0) == EndpointState()
        shared.change(lambda state, now: state.note_failure(now, was_probe=False, chance=0.5))
        assert json.loads(path.read_bytes())["failures"] == 1


def test_a_process_that_keeps_the_lock_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "LOCK_TRIES", 2)
    path = tmp_path / "one.json"
    shared = SharedState(path)
    with file_lock(path.with_suffix(".lock")):
        assert shared.change(lambda state, now: state.take(RateLimits(60, None), 1, now)) == 0.0
    assert not path.exists()


def test_the_name_of_the_file_says_nothing_of_the_key_and_differs_by_key_and_model(tmp_path: Path) -> None:
    url = "https://a.example/v1"
    names = {state_file(tmp_path, url, model, key).name for model in "mn" for key in (None, "k", "l")}
    assert len(names) == 6
    assert state_file(tmp_path, url, "m", "k") == state_file(tmp_path, url, "m", "k")


def test_a_file_that_is_deleted_ends_what_an_endpoint_asked_for(tmp_path):
    shared = SharedState(tmp_path / "endpoint.json", now=lambda: 1000.0)
    shared.change(lambda state, now: state.hold(now + 3600.0, now))
    assert shared.seen().held_seconds(1000.0) == 3600.0
    (tmp_path / "endpoint.json").unlink()
    assert shared.seen().held_seconds(1000.0) == 0.0
