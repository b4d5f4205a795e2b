"""What is away is waited for with growing pauses, by the product's own loop in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.cluster import START_MS
from benchmarks.simulation.drive import LEASE_SECONDS
from db.core.engine import Fence
from db.core.errors import LedgerUnavailable
from db.core.holder import this_process
from db.write.outbox import PEOPLE, ClaimedRow
from db.write.waits import WaitRow, Waits
from flows.driver.standby import Standby
from flows.driver.stopping import StopRequests
from flows.run.results import run_results
from tests.flows.simulated import BranchRunActors, Simulation
from tests.flows.tools import same_result
from tests.matrix import in_verify
from yatt_core.errors import AwayError, InfrastructureError
from yatt_core.outage import FIRST_SECONDS, JITTER, LONGEST_NEAR_SECONDS, LONGEST_SECONDS, pause_before
from yatt_core.protocols.receipts import ShardReceipt, ShardTask
from yatt_core.run_actors.actor_registry import ActorFailure

MINUTE = 60.0
WAYS = {"collect": "judge 'helpful' at https://judge.example/v1", "learn": "a store", "start": "a node of the run"}


class Outage:
    """Lets a method of the actors fail from its second call on, for some simulated seconds; counts the failures."""

    def __init__(self, simulation: Simulation, method: str, seconds: float) -> None:
        self.clock = simulation.cluster.clock
        self.method = method
        self.seconds = seconds
        self.inner = getattr(BranchRunActors, method)
        self.reason = "it does not answer"
        self.calls = 0
        self.failed = list[float]()

    def __call__(self, actors: BranchRunActors, *given: Any) -> Any:
        self.calls += 1
        now = self.clock.monotonic()
        if self.calls > 1 and (not self.failed or now < self.failed[0] + self.seconds):
            self.failed.append(now)
            raise AwayError(f"{WAYS[self.method]} is away: {self.reason}")
        return self.inner(actors, *given)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Simulation, str, float], Outage]:
    def begin(simulation: Simulation, method: str, seconds: float) -> Outage:
        made = Outage(simulation, method, seconds)
        monkeypatch.setattr(BranchRunActors, method, lambda actors, *given: made(actors, *given))
        return made

    return begin


def reasons(simulation: Simulation) -> list[str]:
    with simulation.ledger() as ledger:
        return [event.body["reason"] for event in ledger.events.of_kind(simulation.run, "state")]


@pytest.mark.parametrize("method", ["learn", *in_verify("collect")])
def test_a_run_waits_longer_each_time_and_ends_as_if_nothing_had_been(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], method: str
) -> None:
    quiet = Simulation.of(tmp_path / "quiet", "iterations=4")
    assert quiet.drive() is not None
    simulation = Simulation.of(tmp_path / "waiting", "iterations=4")
    made = outage(simulation, method, 3 * MINUTE)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 4)
    pauses = [later - earlier for earlier, later in zip(made.failed, made.failed[1:], strict=False)]
    assert len(pauses) > 8 and pauses[0] < 4 < pauses[3], "without a pause, three failures are over at once"
    with simulation.ledger() as ledger, quiet.ledger() as other:
        assert same_result(run_results(ledger, simulation.run), run_results(other, quiet.run))
        classes = {row.failure_class for row in ledger.phases.attempts(simulation.run, 0, 2) if row.failure_class}
    assert classes == {"away"}
    told = [reason for reason in reasons(simulation) if reason.startswith("waiting for ")]
    assert len(told) == 1 and told[0].startswith(f"waiting for {WAYS[method]} since ")
    assert reasons(simulation)[-2:] == ["", "target reached"]


def test_a_run_that_has_waited_for_too_long_is_paused_and_goes_on_later(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage]
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    made = outage(simulation, "collect", 3 * 60 * MINUTE)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.exit_code, ended.iteration) == ("paused", 4, 1)
    assert "waited for 2 h" in ended.reason and WAYS["collect"] in ended.reason
    waited = made.failed[-1] - made.failed[0]
    assert 2 * 60 * MINUTE < waited < 2 * 60 * MINUTE + 5 * MINUTE, "a try that takes devices takes some minutes"
    made.seconds = 0.0
    later = simulation.drive()
    assert later is not None and (later.state, later.iteration) == ("completed", 3)


def test_what_a_run_waits_for_is_named_once_with_the_newest_reason(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    made = outage(simulation, "collect", 10 * MINUTE)
    rows = list[WaitRow]()
    record = Waits.record

    def recording(waits: Waits, fence: Fence, row: WaitRow) -> None:
        made.reason = "cannot be reached"
        rows.append(row)
        record(waits, fence, row)

    monkeypatch.setattr(Waits, "record", recording)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    assert {row.dependency for row in rows} == {WAYS["collect"]}
    assert rows[0].reason == "it does not answer" and {row.reason for row in rows[1:]} == {"cannot be reached"}
    told = [reason for reason in reasons(simulation) if reason.startswith("waiting for ")]
    assert told[0].endswith(" UTC: it does not answer") and told[1].endswith(
        "devices are given back: cannot be reached"
    )


def test_a_run_that_waits_for_a_node_heeds_a_request_to_stop(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = StopRequests()

    def ask_for_a_stop(tries: int, chance: float, longest: float) -> float:
        stops.ask(reason="enough")
        return 1.0

    monkeypatch.setattr("flows.driver.session.StopRequests", lambda: stops)
    monkeypatch.setattr("flows.driver.outages.pause_before", ask_for_a_stop)
    simulation = Simulation.of(tmp_path, "iterations=3")
    failing = outage(simulation, "start", 3 * 60 * MINUTE)
    monkeypatch.setattr(BranchRunActors, "outgrown", lambda actors: failing.calls == 1)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.exit_code) == ("stopped", 0)
    assert ended.reason.startswith("enough while waiting: a node of the run is away")
    assert len(failing.failed) == 1, "what is waited for is not needed to stop"


def test_devices_are_given_back_with_a_checkpoint_and_taken_again(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Simulation.of(tmp_path / "quiet", "iterations=4")
    assert quiet.drive() is not None
    simulation = Simulation.of(tmp_path / "waiting", "iterations=4")
    clock = simulation.cluster.clock
    made = outage(simulation, "collect", 30 * MINUTE)
    left = list[float]()
    tried = list[float]()
    leave = BranchRunActors.leave_devices

    def leaving(actors: BranchRunActors) -> None:
        left.append(clock.monotonic())
        leave(actors)

    def answering(actors: BranchRunActors, dependency: str) -> bool:
        assert dependency == WAYS["collect"]
        tried.append(clock.monotonic())
        return tried[-1] >= made.failed[0] + made.seconds

    monkeypatch.setattr(BranchRunActors, "leave_devices", leaving)
    monkeypatch.setattr(BranchRunActors, "answers", answering)
    ended = simulation.drive()
    assert ended is not None
    assert (ended.state, ended.iteration) == ("completed", 4)
    assert len(made.failed) == 1, "while something answers that it is away, the phase is not attempted"
    assert len(left) == 1 and left[0] - made.failed[0] == pytest.approx(6 * MINUTE, abs=1.0), (
        "with the checkpoint's minute"
    )
    assert tried[-1] - (made.failed[0] + made.seconds) < 2 * LONGEST_SECONDS
    with simulation.ledger() as ledger, quiet.ledger() as other:
        assert same_result(run_results(ledger, simulation.run), run_results(other, quiet.run))
        assert ledger.records.own_checkpoints(simulation.run, "kept"), (
            "one was taken before the devices were given back"
        )
        taken = {row.iteration for row in ledger.records.own_checkpoints(simulation.run)}
        assert 1 in taken and 1 not in {row.iteration for row in other.records.own_checkpoints(quiet.run)}
        assert simulation.run not in ledger.waits.of([simulation.run])
    said = [reason for reason in reasons(simulation) if reason.startswith("waiting for ")]
    assert ["its devices are given back" in reason for reason in said] == [False, True, False]


def test_what_was_finished_before_devices_are_given_back_is_sealed_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Simulation.of(tmp_path / "quiet", "iterations=3")
    assert quiet.drive() is not None
    simulation = Simulation.of(tmp_path / "waiting", "iterations=3")
    clock = simulation.cluster.clock
    asked = list[list[int]]()
    sealed = list[list[int]]()
    away = list[float]()
    collect = BranchRunActors.collect
    leave = BranchRunActors.leave_devices

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *given: Any) -> Iterator[ShardReceipt]:
        asked.append([task.key.shard for task in tasks])
        for receipt in collect(actors, tasks, *given):
            if receipt.key.iteration == 2 and receipt.key.shard == 2 and not away:
                away.append(clock.monotonic())
                raise AwayError(f"{WAYS['collect']} is away: it does not answer")
            yield receipt

    def leaving(actors: BranchRunActors) -> None:
        with simulation.ledger() as ledger:
            sealed.append([row.shard for row in ledger.records.shards(simulation.run, 0, 2)])
        leave(actors)

    def answering(actors: BranchRunActors, dependency: str) -> bool:
        return clock.monotonic() >= away[0] + 30 * MINUTE

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    monkeypatch.setattr(BranchRunActors, "leave_devices", leaving)
    monkeypatch.setattr(BranchRunActors, "answers", answering)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 3)
    assert sealed == [[0, 1]], "the devices are given back once, after what was finished is recorded"
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [0, 1, 2, 3]]
    with simulation.ledger() as ledger, quiet.ledger() as other:
        assert same_result(run_results(ledger, simulation.run), run_results(other, quiet.run))


def test_the_seconds_of_an_outage_are_a_metric_of_the_next_commit(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage]
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=4")
    made = outage(simulation, "collect", 3 * MINUTE)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    with simulation.ledger() as ledger:
        ((iteration, seconds),) = ledger.metrics.newest(simulation.run, "seconds/waiting", 9)
    assert iteration == 2, "the others waited for nothing"
    last_pause = (1 + JITTER) * LONGEST_SECONDS
    assert made.failed[-1] - made.failed[0] <= seconds + 1e-6
    assert 3 * MINUTE <= seconds <= 3 * MINUTE + last_pause


def test_people_are_told_of_an_outage_that_lasts_longer_than_a_minute_and_of_its_end(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage]
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3", "guards.notify={}")
    made = outage(simulation, "collect", 3 * MINUTE)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    waiting, back = told_to_people(simulation)
    waited, over = ((row.logged_at_ms - START_MS) / 1000 - made.failed[0] for row in (waiting, back))
    assert MINUTE <= waited <= MINUTE + (1 + JITTER) * LONGEST_SECONDS < 3 * MINUTE < over
    assert str(waiting.payload["text"]).startswith(f"the run is waiting for {WAYS['collect']} since ")
    assert str(back.payload["text"]).startswith(f"the run goes on: {WAYS['collect']} is back after ")


def test_people_are_not_told_of_an_outage_of_less_than_a_minute(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage]
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3", "guards.notify={}")
    made = outage(simulation, "collect", 30.0)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    assert len(made.failed) > 2 and told_to_people(simulation) == []


def told_to_people(simulation: Simulation) -> list[ClaimedRow]:
    """Claims the notifications of a run, for a driver of its own."""
    with simulation.ledger() as ledger:
        fence = ledger.leases.acquire(simulation.run, this_process(), LEASE_SECONDS, lambda holder: True)
        rows: list[ClaimedRow] = ledger.outbox.claim(fence, lane=PEOPLE)
    return rows


def test_somebody_who_asks_for_it_has_a_run_try_at_once(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    clock = simulation.cluster.clock
    made = outage(simulation, "collect", 3 * MINUTE)
    tried = list[float]()

    def answering(actors: BranchRunActors, dependency: str) -> bool:
        tried.append(clock.monotonic())
        if len(tried) == 5:
            with simulation.ledger() as ledger:
                assert ledger.waits.of([simulation.run])[simulation.run].dependency == WAYS["collect"]
                assert ledger.waits.ask(simulation.run, "ann")
        return tried[-1] >= made.failed[0] + made.seconds

    monkeypatch.setattr(BranchRunActors, "answers", answering)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert gaps[4] <= 3.0 < gaps[3], "it looks for such a request every two seconds"
    with simulation.ledger() as ledger:
        assert not ledger.waits.ask(simulation.run), "it waits for nothing any more"
        assert [event.body for event in ledger.events.of_kind(simulation.run, "wait_asked")] == [{"by": "ann"}]


def test_a_run_asked_to_stop_once_its_devices_are_given_back_takes_none(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = StopRequests()
    monkeypatch.setattr("flows.driver.session.StopRequests", lambda: stops)
    simulation = Simulation.of(tmp_path, "iterations=3")
    outage(simulation, "collect", 60 * MINUTE)
    started = list[float]()
    start = BranchRunActors.start

    def starting(actors: BranchRunActors) -> tuple[str, ...]:
        started.append(simulation.cluster.clock.monotonic())
        return start(actors)

    def leaving(actors: BranchRunActors) -> None:
        stops.ask(reason="its window is over")

    monkeypatch.setattr(BranchRunActors, "start", starting)
    monkeypatch.setattr(BranchRunActors, "leave_devices", leaving)
    monkeypatch.setattr(BranchRunActors, "answers", lambda actors, dependency: False)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.exit_code) == ("stopped", 0)
    assert ended.reason.startswith("its window is over while waiting: judge")
    assert len(started) == 1


def test_a_phase_that_fails_again_is_attempted_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=2", "recovery.budgets.infrastructure=5")
    clock = simulation.cluster.clock
    times = list[float]()
    learn = BranchRunActors.learn

    def fail_four_times(actors: BranchRunActors, *given: Any) -> Any:
        if len(times) == 4:
            return learn(actors, *given)
        times.append(clock.monotonic())
        raise InfrastructureError("the disk of a node is read-only")

    monkeypatch.setattr(BranchRunActors, "learn", fail_four_times)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 2)
    attempt, *pauses = (later - earlier for earlier, later in itertools.pairwise(times))
    assert attempt < (1 - JITTER) * 2.0, "the second attempt is at once"
    assert pauses == [pytest.approx(2.0, rel=JITTER), pytest.approx(4.0, rel=JITTER)]


@given(st.integers(0, 10_000), st.floats(0.0, 1.0, exclude_max=True))
def test_pauses_grow_to_a_bound_and_differ_between_runs(tries: int, chance: float) -> None:
    pause = pause_before(tries, chance)
    assert (1 - JITTER) * FIRST_SECONDS <= pause <= (1 + JITTER) * LONGEST_SECONDS
    assert pause_before(tries, 0.0) < pause_before(tries, 0.999)
    assert pause_before(tries + 1, 0.5) >= pause_before(tries, 0.5)


@pytest.mark.parametrize("other", ["a try that needs them", "the ledger"])
def test_devices_that_were_taken_again_are_given_back_at_once_if_it_is_still_away(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    clock = simulation.cluster.clock
    made = outage(simulation, "collect", 30 * MINUTE)
    taken = list[float]()
    left = list[float]()
    start = BranchRunActors.start
    leave = BranchRunActors.leave_devices
    record = Waits.record

    def starting(actors: BranchRunActors) -> tuple[str, ...]:
        taken.append(clock.monotonic())
        return start(actors)

    def leaving(actors: BranchRunActors) -> None:
        left.append(clock.monotonic())
        leave(actors)

    def answering(actors: BranchRunActors, dependency: str) -> bool | None:
        passed = clock.monotonic() - made.failed[0]
        return passed >= made.seconds or (
            None if other != "the ledger" and 10 * MINUTE < passed < 12 * MINUTE else False
        )

    def recording(waits: Waits, fence: Fence, row: WaitRow) -> None:
        if other == "the ledger" and 10 * MINUTE < clock.monotonic() - made.failed[0] < 12 * MINUTE:
            raise LedgerUnavailable("the ledger at db:5432 does not answer")
        record(waits, fence, row)

    monkeypatch.setattr(BranchRunActors, "start", starting)
    monkeypatch.setattr(BranchRunActors, "leave_devices", leaving)
    monkeypatch.setattr(BranchRunActors, "answers", answering)
    monkeypatch.setattr(Waits, "record", recording)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 3)
    again = [at for at in taken if left[0] < at < made.failed[0] + made.seconds]
    if other == "the ledger":
        assert not again and len(left) == 1, "nothing says that the judge is back, so no devices are taken"
        return
    assert again and len(left) == 1 + len(again)
    held = [later - earlier for earlier, later in zip(again, left[1:], strict=True)]
    assert max(held) < 3 * MINUTE, "the time for which it may hold them was used up"


@pytest.mark.parametrize("needed", [True, False], ids=["its node is needed", "there are others"])
def test_a_node_that_took_all_its_actors_with_it_is_used_again_if_there_is_no_place_without(
    tmp_path: Path, outage: Callable[[Simulation, str, float], Outage], monkeypatch: pytest.MonkeyPatch, needed: bool
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    made = outage(simulation, "collect", 1.0)
    clock = simulation.cluster.clock
    avoided = list[frozenset[str]]()
    start = BranchRunActors.start

    def lost(actors: BranchRunActors) -> bool:
        if made.calls == 2 and not actors.failures and not avoided[1:]:
            actors.failures += [ActorFailure(name, "h2", "its node died") for name in ("trainer-1", "rollout-1", "c-1")]
        return True

    def starting(actors: BranchRunActors) -> tuple[str, ...]:
        avoided.append(actors.avoid_nodes)
        return start(actors)

    def check_room(actors: BranchRunActors) -> None:
        if needed and actors.avoid_nodes:
            raise AwayError("a node of the run is away: it is lost or quarantined")

    monkeypatch.setattr(BranchRunActors, "answers", lambda actors, dependency: lost(actors))
    monkeypatch.setattr(BranchRunActors, "start", starting)
    monkeypatch.setattr(BranchRunActors, "check_room", check_room)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 3)
    with simulation.ledger() as ledger:
        assert ledger.events.of_kind(simulation.run, "quarantined"), "it would be avoided if there was a place"
    assert avoided[1] == (frozenset() if needed else {"h2"}) and clock.monotonic() < 60 * MINUTE


@pytest.mark.parametrize(("way", "longest"), [("collect", LONGEST_SECONDS), ("start", LONGEST_NEAR_SECONDS)])
def test_a_missing_node_is_looked_for_more_often_than_others_are_asked(
    tmp_path: Path,
    outage: Callable[[Simulation, str, float], Outage],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    longest: float,
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    clock = simulation.cluster.clock
    made = outage(simulation, way, 3 * MINUTE)
    tried = list[float]()

    def answering(standby: Standby, dependency: str, stop: Callable[[], bool]) -> bool:
        assert dependency == WAYS[way]
        tried.append(clock.monotonic())
        return tried[-1] >= made.failed[0] + made.seconds

    monkeypatch.setattr(Standby, "answers", answering)
    monkeypatch.setattr(BranchRunActors, "outgrown", lambda actors: made.calls == 1 and way == "start")
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried[4:])]
    assert (1 - JITTER) * longest <= min(gaps) and max(gaps) <= (1 + JITTER) * longest + 0.01
