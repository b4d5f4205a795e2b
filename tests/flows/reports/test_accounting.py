"""Accounting of a run's wall time, on ledgers written by hand with a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from db.core.engine import Fence
from db.ledger import Ledger
from db.read.history import AttemptTimes, DriverSessionTimes, LeaseTimes, RunHistory, SealedTimes
from db.write.records import ShardRow
from flows.reports.accounting import BETWEEN_PHASES, BUCKETS, Accounts, accounts_of
from flows.reports.advice import Advice, advise
from tests.db.tools import SimulatedClock, commit_of, holder
from tests.matrix import examples
from yatt_core.checkpoints.interval import checkpoint_interval, overhead

PHASES = {"place": 0.0, "collect": 60.0, "prepare": 8.0, "learn": 20.0, "sync": 4.0, "commit": 1.0}
ITERATION = sum(PHASES.values())


class Story:
    """Writes a ledger as drivers do, in simulated time."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimulatedClock()
        self.ledger = Ledger.open(folder / "ledger.sqlite", clock=self.clock)
        self.run = self.ledger.runs.create("toy", {}, "digest", 100).id
        self.fence = Fence.of_run(self.run, 0)

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def start(self, seconds: float, **recovered: object) -> None:
        """Lets a driver take the lease, start everything within `seconds`, and recover."""
        self.fence = self.ledger.leases.acquire(self.run, holder("driver"), 10, lambda _: True)
        self.ledger.leases.start_session(self.fence, "", "")
        self.phase("recover" if self.fence.term > 1 else "start", seconds, **recovered)

    def phase(self, name: str, seconds: float, iteration: int = 0, fails: str = "", **receipt: object) -> None:
        """Writes one attempt at a phase."""
        branch = self.ledger.runs.find(self.run).current_branch
        attempt = self.ledger.phases.plan(self.fence, branch, iteration, name)
        self.ledger.phases.dispatch(self.fence, attempt)
        self.sleep(seconds)
        if fails:
            self.ledger.phases.fail(self.fence, attempt, fails, "it broke")
        else:
            self.ledger.phases.finish(self.fence, attempt, receipt, seconds)

    def killed_in(self, name: str, seconds: float, iteration: int, sealed_after: float = 0.0) -> None:
        """Lets the driver die within an attempt, right after it renewed its lease."""
        attempt = self.ledger.phases.plan(self.fence, 0, iteration, name)
        self.ledger.phases.dispatch(self.fence, attempt)
        if sealed_after:
            self.sleep(sealed_after)
            self.ledger.records.shard(
                self.fence, ShardRow(0, iteration, 0, 0, self.fence.term, "folder", "sha", 1, 1, b"", {})
            )
        self.sleep(seconds - sealed_after)
        self.ledger.leases.renew(self.fence, 10)

    def iteration(self, number: int, skip: tuple[str, ...] = (), checkpoint: float = 0.0) -> None:
        for name, seconds in PHASES.items():
            if name == "commit" and checkpoint:
                self.phase("checkpoint", checkpoint, number)
            if name not in skip:
                self.phase(name, seconds, number)
        self.ledger.commits.commit(self.fence, commit_of(number, self.ledger.runs.find(self.run).current_branch))

    def end(self) -> None:
        self.ledger.leases.end_session(self.fence, "ended")
        self.ledger.leases.release(self.fence)

    def accounts(self) -> Accounts:
        return accounts_of(self.ledger.overview.history(self.run))

    def advice(self, now: int = 20) -> Advice:
        return advise(self.ledger.overview.history(self.run), self.accounts(), now)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.ledger.close()


def buckets(accounts: Accounts) -> dict[str, float]:
    return {name: seconds for name, seconds in accounts.buckets.items() if seconds}


def started(story: Story) -> Story:
    story.start(5)
    story.ledger.commits.commit(story.fence, commit_of(0))
    return story


def test_nothing_was_done_yet(story: Story) -> None:
    accounts = story.accounts()
    assert (accounts.wall_seconds, accounts.ettr, accounts.crashes, buckets(accounts)) == (0, None, (), {})


def test_the_buckets_of_an_undisturbed_run(story: Story) -> None:
    started(story)
    story.iteration(1, checkpoint=7)
    story.sleep(2)  # the last deliveries
    story.end()
    story.sleep(100)
    story.start(5)
    story.sleep(3)  # the ledger did not answer
    story.iteration(2)
    accounts = story.accounts()
    assert buckets(accounts) == {
        "productive": 2 * ITERATION,
        "checkpoint": 7,
        "start": 5 + 5,
        "waiting": 5,
        "idle": 100,
    }
    assert accounts.wall_seconds == sum(accounts.buckets.values())
    assert accounts.ettr == pytest.approx(2 * ITERATION / (2 * ITERATION + 22))
    assert accounts.phases["productive"]["collect"] == 120
    assert accounts.crashes == ()


def test_a_driver_killed_in_collect_loses_what_was_not_sealed(story: Story) -> None:
    started(story)
    story.killed_in("collect", 40, 1, sealed_after=30)
    story.sleep(12)  # no driver
    story.start(6, restored=0, replayed=0, replay_seconds=0.0)
    story.phase("collect", 30, 1)
    accounts = story.accounts()
    assert buckets(accounts) == {"productive": 60, "redone": 10, "start": 5, "restart": 12 + 6}
    (crash,) = accounts.crashes
    assert (crash.kind, crash.phase, crash.iteration, crash.term) == ("driver lost", "collect", 1, 1)
    assert (crash.redone, crash.restart_seconds) == ({"collect": 10}, 18)


def test_a_driver_killed_between_phases_costs_its_restart(story: Story) -> None:
    started(story)
    story.iteration(1)
    story.sleep(1)
    story.ledger.leases.renew(story.fence, 10)
    story.sleep(4)
    story.start(6)
    (crash,) = story.accounts().crashes
    assert (crash.phase, crash.redone, crash.restart_seconds) == (BETWEEN_PHASES, {}, 10)


def test_replay_and_repeated_learning_are_redone_and_charged_to_their_crash(story: Story) -> None:
    started(story)
    for number in (1, 2):
        story.iteration(number)
    story.phase("collect", 60, 3)
    story.phase("prepare", 8, 3)
    story.phase("learn", 20, 3)
    story.phase("sync", 1, 3, fails="infrastructure")  # a trainer rank and with it the update is lost
    story.phase("recover", 55, 2, restored=0, replayed=2, replay_seconds=40.0)
    story.iteration(3, skip=("collect", "prepare"))
    accounts = story.accounts()
    assert buckets(accounts) == {"productive": 3 * ITERATION, "redone": 20 + 1 + 40, "start": 5, "restart": 15}
    (crash,) = accounts.crashes
    assert (crash.kind, crash.phase, crash.restart_seconds) == ("infrastructure", "sync", 15)
    assert crash.redone == {"learn": 20, "sync": 1, "replay": 40}


def test_work_that_continued_without_its_driver_is_not_redone(story: Story) -> None:
    started(story)
    story.iteration(1)
    story.phase("collect", 60, 2)
    story.phase("prepare", 8, 2)
    story.killed_in("learn", 15, 2)
    story.sleep(2)
    story.start(4)
    story.phase("learn", 1, 2)  # of its 20 s, 15 were done when the driver died, the rest before the next one started
    story.phase("sync", 4, 2)
    assert buckets(story.accounts()) == {"productive": ITERATION + 60 + 8 + 15 + 1 + 4, "start": 5, "restart": 2 + 4}


def test_the_start_of_a_fork_is_a_start(story: Story) -> None:
    """The creation of a fork takes its lease; its first driver restores the parent's checkpoint and replays its updates."""
    story.ledger.leases.release(story.ledger.leases.acquire(story.run, holder("yatt fork"), 10))
    story.start(30, restored=0, replayed=2, replay_seconds=20.0)
    story.ledger.commits.commit(story.fence, commit_of(0))
    story.iteration(1)
    story.end()
    story.start(4, restored=1, replayed=0, replay_seconds=0.0)
    story.iteration(2)
    accounts = story.accounts()
    assert buckets(accounts) == {"productive": 2 * ITERATION, "start": 30 + 4}
    assert accounts.crashes == ()


def test_a_start_after_a_failure_is_a_restart(story: Story) -> None:
    started(story)
    story.phase("collect", 10, 1, fails="data")
    story.end()
    story.start(6, restored=0, replayed=0, replay_seconds=0.0)
    story.iteration(1)
    assert buckets(story.accounts()) == {"productive": ITERATION, "redone": 10, "start": 5, "restart": 6}


def test_iterations_that_a_rollback_discarded_count_as_redone(story: Story) -> None:
    started(story)
    for number in (1, 2, 3):
        story.iteration(number)
    story.ledger.runs.start_branch(story.fence, 1, "loss went up")
    for number in (2, 3):
        story.iteration(number)
    accounts = story.accounts()
    assert (accounts.buckets["productive"], accounts.buckets["redone"]) == (3 * ITERATION, 2 * ITERATION)
    assert accounts.crashes == ()


def test_an_operator_who_took_the_lease_did_not_drive(story: Story) -> None:
    started(story)
    story.end()
    story.sleep(10)
    fence = story.ledger.leases.acquire(story.run, holder("yatt rollback"), 10)
    story.sleep(2)
    story.ledger.leases.release(fence)
    story.sleep(10)
    story.start(5)
    accounts = story.accounts()
    assert (buckets(accounts), accounts.crashes) == ({"start": 5 + 5, "idle": 22}, ())


def test_a_running_attempt_is_productive_up_to_the_last_sign_of_life(story: Story) -> None:
    started(story)
    story.killed_in("collect", 40, 1)
    story.sleep(1000)
    accounts = story.accounts()
    assert (buckets(accounts), accounts.crashes) == ({"productive": 40, "start": 5}, ())


def test_each_crash_is_charged_its_own_cost(story: Story) -> None:
    started(story)
    story.iteration(1)
    story.phase("collect", 10, 2, fails="infrastructure")
    story.phase("recover", 3, 1)
    story.phase("collect", 20, 2, fails="infrastructure")
    story.phase("recover", 4, 1)
    story.end()
    story.start(7)
    costs = [(crash.redone, crash.restart_seconds) for crash in story.accounts().crashes]
    assert costs == [({"collect": 10}, 3), ({"collect": 20}, 4)]


# -- for every ledger -----------------------------------------------------------------------------------------------------

TIMES = st.integers(0, 60)


@st.composite
def histories(draw: st.DrawFn) -> RunHistory:
    """Draws any rows, including impossible ones: out of order, overlapping, after their session's end."""
    terms = range(1, draw(st.integers(1, 4)) + 1)
    taken = sorted(draw(st.lists(TIMES, min_size=len(terms), max_size=len(terms))))
    maybe = st.none() | TIMES
    leases = tuple(LeaseTimes(e, "driver", at, draw(maybe), draw(maybe)) for e, at in zip(terms, taken, strict=True))
    sessions = tuple(
        DriverSessionTimes(e, draw(TIMES), draw(maybe), draw(st.sampled_from([None, "lost", "ended"])))
        for e in terms
        if draw(st.booleans())
    )
    attempts = [draw(attempts_of(number, list(terms))) for number in range(draw(st.integers(0, 8)))]
    sealed = tuple(SealedTimes(0, draw(st.integers(0, 1)), at) for at in draw(st.lists(TIMES, max_size=3)))
    ordered = tuple(sorted(attempts, key=lambda attempt: attempt.planned_at))
    return RunHistory("run", (), sessions, leases, ordered, sealed)


@st.composite
def attempts_of(draw: st.DrawFn, number: int, terms: list[int]) -> AttemptTimes:
    state = draw(st.sampled_from(["PLANNED", "DISPATCHED", "DONE", "FAILED"]))
    planned = draw(TIMES)
    return AttemptTimes(
        branch=0,
        iteration=draw(st.integers(0, 1)),
        phase=draw(st.sampled_from(["recover", "collect", "learn", "checkpoint"])),
        number=number,
        state=state,
        term=draw(st.sampled_from(terms)),
        planned_at=planned,
        dispatched_at=draw(st.none() | st.just(planned)),
        ended_at=draw(TIMES) if state in ("DONE", "FAILED") else None,
        failure_class="infrastructure" if state == "FAILED" else None,
        reason=draw(st.sampled_from(["driver lost", "it broke"])) if state == "FAILED" else None,
        receipt={"restored": 0, "replayed": 1, "replay_seconds": draw(TIMES) / 1000},
    )


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_the_buckets_share_the_wall_time_without_gap_or_overlap(history: RunHistory) -> None:
    accounts = accounts_of(history)
    assert set(accounts.buckets) == set(BUCKETS)
    assert all(seconds >= 0 for seconds in accounts.buckets.values())
    milliseconds = [round(1000 * seconds) for seconds in accounts.buckets.values()]
    assert sum(milliseconds) == round(1000 * accounts.wall_seconds)
    for bucket, by_phase in accounts.phases.items():
        assert sum(by_phase.values()) <= accounts.buckets[bucket] + 1e-9
    for name in ("restart", "redone"):
        charged = sum(
            crash.restart_seconds if name == "restart" else sum(crash.redone.values()) for crash in accounts.crashes
        )
        assert charged <= accounts.buckets[name] + 1e-9


# -- advice ---------------------------------------------------------------------------------------------------------------


def test_youngs_interval_includes_the_cost_of_replay() -> None:
    # sqrt(2 x 15 x 7500 / (65 x 300)) = 3.4, rounded to the neighbouring integer that costs less.
    assert checkpoint_interval(stall=15, between_failures=7500, replay=65, iteration=300) == 3
    assert checkpoint_interval(stall=0.01, between_failures=100, replay=65, iteration=300) == 1


@given(st.floats(0.1, 100), st.floats(10, 1e6), st.floats(0.1, 100), st.floats(1, 1000))
def test_no_other_interval_costs_less(stall: float, between: float, replay: float, iteration: float) -> None:
    costs = (stall, between, replay, iteration)
    best = checkpoint_interval(*costs)
    others = {max(1, best - 1), best + 1, best * 2, max(1, best // 2)}
    assert all(overhead(best, *costs) <= overhead(other, *costs) * (1 + 1e-9) for other in others)


def test_no_advice_before_anything_was_measured(story: Story) -> None:
    started(story)
    assert story.advice().every is None


def test_without_failures_one_per_day_is_assumed_and_advice_is_not_firm(story: Story) -> None:
    started(story)
    for number in range(1, 6):
        story.iteration(number, checkpoint=2)
    advice = story.advice(now=1)
    assert (advice.failures, advice.firm, advice.seconds_between_failures) == (0, False, 24 * 3600)
    assert (advice.stall_seconds, advice.replay_seconds, advice.iteration_seconds) == (2, 28, ITERATION)
    assert advice.every == checkpoint_interval(2, 24 * 3600, 28, ITERATION)


def test_failures_that_lost_the_tensors_count_and_planned_starts_do_not(story: Story) -> None:
    started(story)
    for number in range(1, 5):
        story.iteration(number, checkpoint=2)
        story.phase("place", 1, number + 1, fails="infrastructure")
        story.phase("recover", 9, number, restored=0, replayed=number, replay_seconds=20.0 * number)
    story.phase("place", 1, 5, fails="infrastructure")
    story.phase("recover", 9, 4, restored=None, replayed=0, replay_seconds=0.0, warm=True)
    story.end()
    story.start(5, restored=4, replayed=0, replay_seconds=0.0)
    advice = story.advice()
    assert (advice.failures, advice.firm, advice.replay_seconds) == (4, True, 20)
    assert advice.seconds_between_failures == pytest.approx(story.accounts().wall_seconds / 4)
