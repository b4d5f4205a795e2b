"""The queue over time, with any sequence of submissions, commits, reclaims and changes: no limit is exceeded, all runs end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flows.queueing.decisions import decide
from flows.queueing.facts import NEVER, Allocation, Entry, QueueFacts, QueueIntent
from flows.queueing.limits import Stretch, violations
from flows.queueing.pools import parse_pools
from tests.matrix import examples

POOLS = parse_pools(
    {
        "pools": {"main": {"devices": 8, "quotas": {"code": 6}}, "spot": {"devices": 4, "spot": True}},
        "devices_per_owner": 10,
        "owners": {"ben": 8},
        "ageing_hours": 1,
    },
    "pools",
)
STEP = 600.0


@dataclass
class Job:
    entry: Entry
    left: float
    waits_since: float
    stretches: list[Stretch] = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    """Runs work while they hold devices, give them back a step after they were asked, and keep what they have done."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.jobs: dict[str, Job] = {}
        self.away: dict[str, dict[int, float]] = {}
        self.ended: list[Job] = []

    @rule(
        devices=st.integers(1, 8),
        priority=st.integers(0, 3),
        owner=st.sampled_from(["ada", "ben"]),
        project=st.sampled_from(["chat", "code"]),
        pools=st.sampled_from([("main",), ("spot", "main"), ("spot",), ("main", "spot")]),
        steps=st.integers(1, 30),
        known=st.booleans(),
    )
    def submit(
        self, devices: int, priority: int, owner: str, project: str, pools: tuple[str, ...], steps: int, known: bool
    ) -> None:
        most = max(POOLS.most_devices(pool, owner, project) for pool in pools)
        run = f"run-{self.serial}"
        seconds = steps * STEP if known else NEVER
        smaller = min(devices, most)
        entry = Entry(run, pools, owner, project, priority, smaller, self.serial, run_seconds=seconds)
        self.serial += 1
        self.jobs[run] = Job(entry, steps * STEP, self.now)
        self.decide()

    @rule(pool=st.sampled_from(["main", "spot"]), device=st.integers(0, 3), notice=st.sampled_from([0.0, 60.0]))
    def reclaim(self, pool: str, device: int, notice: float) -> None:
        self.away.setdefault(pool, {})[device] = self.now + notice
        self.decide()

    @rule(pool=st.sampled_from(["main", "spot"]))
    def give_back(self, pool: str) -> None:
        self.away.pop(pool, None)
        self.decide()

    @rule(number=st.integers(0, 20), wanted=st.sampled_from([QueueIntent.RUN, QueueIntent.HOLD]))
    def change(self, number: int, wanted: QueueIntent) -> None:
        job = self.jobs.get(f"run-{number}")
        if job is not None:
            job.entry = replace(job.entry, wanted=wanted)
            self.decide()

    @rule(steps=st.integers(1, 4))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        stretches = [each for job in (*self.jobs.values(), *self.ended) for each in job.stretches]
        stretches += [self.stretch(job, None) for job in self.jobs.values() if job.entry.held is not None]
        assert list(violations(POOLS, stretches)) == []

    def teardown(self) -> None:
        self.away.clear()
        for job in self.jobs.values():
            job.entry = replace(job.entry, wanted=QueueIntent.RUN)
        # All devices for one run after the other would be enough, with a start and a protected time for each.
        for _ in range(sum(int(job.left / STEP) + 10 for job in self.jobs.values()) * 3 + 50):
            self.step()
        assert not self.jobs, "these runs starve: " + ", ".join(self.jobs)

    def step(self) -> None:
        self.now += STEP
        for job in list(self.jobs.values()):
            held = job.entry.held
            if held is None:
                continue
            job.left -= STEP
            if held.stopping or job.left <= 0:
                job.stretches.append(self.stretch(job, self.now))
                job.entry = replace(job.entry, held=None)
                job.waits_since = self.now
            if job.left <= 0:
                self.ended.append(self.jobs.pop(job.entry.run))
        self.decide()

    def stretch(self, job: Job, until: float | None) -> Stretch:
        entry = job.entry
        held = job.entry.held
        assert held is not None
        return Stretch(entry.run, held.pool, entry.owner, entry.project, held.devices, held.started_at, until)

    def decide(self) -> None:
        for job in self.jobs.values():
            held = job.entry.held
            if held is None and job.entry.wanted is QueueIntent.RUN:
                waited = job.entry.waited + self.now - job.waits_since
                job.entry = replace(job.entry, waited=waited)
                job.waits_since = self.now
            elif held is not None:
                ends = self.now + job.left
                job.entry = replace(job.entry, held=replace(held, ends_at=ends, free_at=self.now + STEP))
        decision = decide(POOLS, QueueFacts(self.now, tuple(job.entry for job in self.jobs.values()), self.away))
        for stop in decision.stops:
            held = self.jobs[stop.run].entry.held
            assert held is not None and held.stop_reason != stop.reason
            asked = replace(held, stopping=True, stop_reason=stop.reason)
            self.jobs[stop.run].entry = replace(self.jobs[stop.run].entry, held=asked)
        for start in decision.starts:
            job = self.jobs[start.run]
            assert job.entry.held is None and job.entry.wanted is QueueIntent.RUN
            assert len(start.devices) == job.entry.devices and start.pool in job.entry.pools
            assert not set(start.devices) & set(self.away.get(start.pool, {}))
            held = Allocation(start.pool, start.devices, self.now, start.level, backfilled=start.backfilled)
            job.entry = replace(job.entry, held=held)
        self.no_limit_is_exceeded()


QueueMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
TestQueue = QueueMachine.TestCase
