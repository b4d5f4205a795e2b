"""The state machine of iterations: phases, budgets, shards, choices, commits, branches; drivers may pause."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import rule

from db.core.engine import Fence
from db.core.errors import AlreadyCommitted, Conflict, OutOfOrder
from db.write.phases import Attempt
from db.write.records import ChoiceRow, ShardRow
from tests.db.machines.world import DRIVERS, TTL, World
from tests.db.tools import commit_of, point_count

PHASES = st.sampled_from(["collect", "learn"])
FAILURES = st.sampled_from(["infrastructure", "data"])
SHARD = ShardRow(0, 0, 0, 0, 1, "folder", "manifest", 4, 9, b"d" * 32, {})


class Iterations(World):
    """The model: the line of commits, the charged failures, and which shard and which choice came first."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = 0
        self.branches = 1
        self.line: list[tuple[int, int]] = []
        """(branch, term) of each committed iteration along the current line."""
        self.commits = 0
        self.held: dict[int, Attempt] = {}
        """The attempt that each driver believes to be its current one."""
        self.state: dict[Attempt, str] = {}
        self.charged: dict[tuple[int, int, str, str], int] = {}
        self.shards: dict[tuple[int, int, int], str] = {}
        self.choices: dict[tuple[int, int, str], tuple[str, int]] = {}

    @property
    def next(self) -> int:
        return len(self.line)

    def taken_over(self) -> None:
        self._fail_open("driver_lost")
        self._check_line()

    def _fail_open(self, failure_class: str) -> int:
        open_attempts = [attempt for attempt, state in self.state.items() if state in ("PLANNED", "DISPATCHED")]
        for attempt in open_attempts:
            self._fail(attempt, failure_class)
        return len(open_attempts)

    def _fail(self, attempt: Attempt, failure_class: str) -> None:
        if self.state[attempt] == "DISPATCHED":
            key = (attempt.branch, attempt.iteration, attempt.phase, failure_class)
            self.charged[key] = self.charged.get(key, 0) + 1
        self.state[attempt] = "FAILED"

    @rule(driver=DRIVERS, phase=PHASES)
    def plan(self, driver: int, phase: str) -> None:
        attempt = self.write(driver, lambda fence: self.ledger.phases.plan(fence, self.branch, self.next, phase))
        if attempt is not None:
            assert attempt not in self.state, "a number was used twice"
            self.state[attempt] = "PLANNED"
            self.held[driver] = attempt

    def _move(self, driver: int, expected: tuple[str, ...], verb: str, failure_class: str = "data") -> Attempt | None:
        """Moves the attempt that a driver believes to be its current one; returns None if that was rightly refused."""
        attempt = self.held.get(driver)
        if attempt is None:
            return None

        def step(fence: Fence) -> bool:
            if verb == "dispatch":
                self.ledger.phases.dispatch(fence, attempt)
            elif verb == "finish":
                self.ledger.phases.finish(fence, attempt, {"by": driver}, 1.0)
            else:
                self.ledger.phases.fail(fence, attempt, failure_class, "it broke")
            return True

        try:
            done = self.write(driver, step)
        except OutOfOrder:
            assert self.owns(driver)
            assert self.state[attempt] not in expected, f"{verb} was refused"
            return None
        if not done:
            return None
        assert self.state[attempt] in expected, f"{verb} of an attempt that is {self.state[attempt]}"
        return attempt

    @rule(driver=DRIVERS)
    def dispatch(self, driver: int) -> None:
        attempt = self._move(driver, ("PLANNED",), "dispatch")
        if attempt is not None:
            self.state[attempt] = "DISPATCHED"

    @rule(driver=DRIVERS)
    def finish(self, driver: int) -> None:
        attempt = self._move(driver, ("DISPATCHED",), "finish")
        if attempt is not None:
            self.state[attempt] = "DONE"

    @rule(driver=DRIVERS, failure_class=FAILURES)
    def fail(self, driver: int, failure_class: str) -> None:
        attempt = self._move(driver, ("PLANNED", "DISPATCHED"), "fail", failure_class)
        if attempt is not None:
            self._fail(attempt, failure_class)

    @rule(driver=DRIVERS)
    def lose_sight(self, driver: int) -> None:
        count = self.write(driver, lambda fence: self.ledger.phases.fail_open(fence, "the ledger was away"))
        if count is not None:
            assert count == self._fail_open("infrastructure")

    @rule(driver=DRIVERS, shard=st.integers(0, 1), manifest=st.sampled_from(["a", "a", "b"]))
    def adopt(self, driver: int, shard: int, manifest: str) -> None:
        """Records a sealed shard; a different manifest for the same shard is refused."""
        key = (self.branch, self.next, shard)
        row = replace(SHARD, branch=self.branch, iteration=self.next, shard=shard, manifest_sha256=manifest)
        first = self.shards.get(key)
        try:
            new = self.write(driver, lambda fence: self.ledger.records.shard(fence, row))
        except Conflict:
            assert self.owns(driver)
            assert first not in (None, manifest), "the first shard, or the same one again, was refused"
            return
        if new is not None:
            assert first in (None, manifest), "a shard was admitted twice"
            assert new == (first is None)
            self.shards[key] = manifest

    @rule(driver=DRIVERS, name=st.sampled_from(["skip", "plan"]), body=st.sampled_from(["x", "y"]))
    def choose(self, driver: int, name: str, body: str) -> None:
        key = (self.branch, self.next, name)
        row = ChoiceRow(self.branch, self.next, name, {"body": body})
        chosen = self.write(driver, lambda fence: self.ledger.records.choice(fence, row))
        if chosen is not None:
            self.links += key not in self.choices
            expected, term = self.choices.setdefault(key, (body, self.term))
            assert (chosen.body, chosen.term) == ({"body": expected}, term), "the first choice was not returned"

    @rule(driver=DRIVERS, offset=st.sampled_from([-1, 0, 0, 0, 1]))
    def commit(self, driver: int, offset: int) -> None:
        iteration = self.next + offset
        try:
            self.write(driver, lambda fence: self.ledger.commits.commit(fence, commit_of(iteration, self.branch)))
        except AlreadyCommitted:
            assert self.owns(driver)
            assert offset == -1
            return
        except OutOfOrder:
            assert self.owns(driver)
            assert offset == 1
            return
        if self.owns(driver):
            assert offset == 0
            self.line.append((self.branch, self.term))
            self.commits += 1
            self.links += 1
            self.expires = self.clock.now + TTL * 1000

    @rule(driver=DRIVERS, back=st.integers(0, 3))
    def roll_back(self, driver: int, back: int) -> None:
        at = self.next - 1 - back
        try:
            number = self.write(driver, lambda fence: self.ledger.runs.start_branch(fence, at, "fell"))
        except OutOfOrder:
            assert self.owns(driver)
            assert at < 0
            return
        if number is not None:
            assert number == self.branches
            self.branch = number
            self.branches = self.branches + 1
            self.links += 1
            del self.line[at + 1 :]

    def _check_line(self) -> None:
        """Checks that the line continues where it ended."""
        latest = self.ledger.commits.latest(self.run)
        assert (-1 if latest is None else latest.iteration) == self.next - 1
        if latest is not None:
            assert (latest.branch, latest.term) == self.line[-1]

    def teardown(self) -> None:
        super().teardown()
        self._check_line()
        assert [step for step, _ in self.ledger.metrics.history(self.run, "reward")] == list(range(self.next))
        assert point_count(self.ledger, self.run) == 2 * self.commits, "an iteration was committed twice"
        for place in {(attempt.branch, attempt.iteration) for attempt in self.state}:
            self._check_attempts(*place)
        for place in {key[:2] for key in self.shards}:
            rows = self.ledger.records.shards(self.run, *place)
            expected = {key[2]: manifest for key, manifest in self.shards.items() if key[:2] == place}
            assert {row.shard: row.manifest_sha256 for row in rows} == expected

    def _check_attempts(self, branch: int, iteration: int) -> None:
        """Checks that attempts match the model and that exactly the failed ones that were dispatched are charged."""
        rows = self.ledger.phases.attempts(self.run, branch, iteration)
        expected = {a: state for a, state in self.state.items() if (a.branch, a.iteration) == (branch, iteration)}
        assert {Attempt(r.run, r.branch, r.iteration, r.phase, r.number): r.state for r in rows} == expected
        for phase in ("collect", "learn"):
            charged = {key[3]: n for key, n in self.charged.items() if key[:3] == (branch, iteration, phase)}
            assert self.ledger.phases.charged(self.run, branch, iteration, phase) == charged
