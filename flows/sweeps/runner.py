"""Carries a sweep from where it stands to its end: has settings proposed and runs driven, and records values and decisions.

Consumes a sweep's record and something that drives runs. Produces starts, forks of them, and links of the first run's audit
chain. It may be killed at any line: the next one asks the plan again, which continues from what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from db.core.engine import Fence
from db.core.errors import LeaseHeld
from db.ledger import Ledger
from db.write.runs import RunRow
from flows.members.alone import driving_alone
from flows.members.driving import Drives, Tell
from flows.members.tags import maker_of, whole_fork
from flows.prefect_io.secret_blocks import read_block
from flows.run.creation import create_run, finish_run
from flows.run.home import Home
from flows.run.lease import DRIVER, LeaseKeeper, operator_lease
from flows.sweeps.plan import Conclude, Drive, Promote, Propose, Settle, Step
from flows.sweeps.proposals import propose
from flows.sweeps.record import EVALUATION, SWEEP, SweepRecord, trial_name
from flows.sweeps.schedule import RungJob
from flows.sweeps.spec import overrides_of
from flows.sweeps.starts import SharedStart
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec import override_spec


def best_in_words(best: int, tied: Sequence[int]) -> str:
    """Returns which trial is the best, for people.

    tied: the trials that are as good, itself included.
    """
    if len(tied) < 2:
        return f"trial {best} is the best"
    return f"trials {', '.join(map(str, tied))} are equally good; trial {best}, the first of them, is taken as the best"


class SweepRunner:
    """Drives one sweep.

    tell: called with each step, for people.
    """

    def __init__(self, home: Home, ledger: Ledger, sweep: str, drive: Drives, tell: Tell) -> None:
        self._home = home
        self._ledger = ledger
        self._record = SweepRecord.of(ledger, sweep)
        self._drive = drive
        self._tell = tell

    def run(self) -> None:
        """Takes all steps that are left.

        Raises `InfrastructureError` for a run that ends early, `DrivenElsewhereError` if another command drives this
        sweep, and `ConfigurationError` if the runs do not have the sweep's metric.
        """
        with driving_alone(self._home, self._ledger, SWEEP, self._record.name) as lease:
            self._drive(partial(self.goals, lease))
            if left := self.goals(lease):
                name = self._record.name
                raise InfrastructureError(
                    f"sweep {name}: {', '.join(left)} ended early; `yatt sweep resume {name}` goes on"
                )

    def goals(self, lease: LeaseKeeper) -> Mapping[str, int]:
        """Takes all steps up to the next one that needs runs driven; returns these runs and their iterations.

        lease: the sweep's, which every decision carries. Raises `FencedError` once another process drives the sweep.
        """
        lease.check()
        record = self._record
        if not record.starts.keys and self._ledger.runs.find(record.name).iteration < 0:
            return {record.name: 0}  # its driver needs the lease that all other steps take
        try:
            with operator_lease(self._ledger, record.name, f"yatt sweep of {record.name}"):
                while (step := record.plan.next_step(record.facts())) is not None:
                    if isinstance(step, Drive):
                        return self._runs(step.jobs)
                    self._take(lease.fence, step)
        except LeaseHeld as error:
            if not error.holder.startswith(DRIVER):
                raise
            return {record.name: 0}  # the driver that a killed command has left behind will soon have ended
        return {}

    def _take(self, fence: Fence, step: Step) -> None:
        record = self._record
        match step:
            case Propose(trial, history):
                setting = propose(record.spec, record.run_spec.seed, trial, history)
                record.add_trial(fence, step, setting)
                self._tell(f"trial {trial}: {', '.join(overrides_of(setting))}")
            case Promote(job, rank, among):
                record.add_promotion(fence, step)
                self._tell(f"trial {job.trial} goes on to iteration {self._rung(job)}: rank {rank} of {among}")
            case Settle(job, failed):
                self._settle(fence, job, failed)
            case Conclude(best):
                record.add_winner(fence, best)
                tied = record.plan.schedule(record.facts()).tied()
                self._tell("all trials have failed" if best is None else best_in_words(best.trial, tied))

    def _settle(self, fence: Fence, job: RungJob, failed: bool) -> None:
        record = self._record
        runs = self._record.runs_of(job.trial, self._record.members())
        if not failed:
            measured = {seed: record.measured(row.id, self._rung(job)) for seed, row in runs.items()}
            values = {seed: value for seed, value in measured.items() if value is not None}
            if len(values) < len(measured):
                self._settle_failed(
                    fence, job, f"no answer of its evaluation at iteration {self._rung(job)} has a score"
                )
                return
            record.add_value(fence, job, values)
            said = ", ".join(f"{value:.5g}" for value in values.values())
            self._tell(f"trial {job.trial} at iteration {self._rung(job)}: {record.spec.metric} {said}")
            return
        reasons = [record.trials()[job.trial].refusal, *(record.failure(row) for row in runs.values())]
        reason = next((each for each in reasons if each is not None), None)
        if reason is None:
            return  # a person has resumed the run meanwhile
        self._settle_failed(fence, job, reason)

    def _settle_failed(self, fence: Fence, job: RungJob, reason: str) -> None:
        self._record.add_value(fence, job, {}, reason)
        self._tell(f"trial {job.trial} has failed: {reason}")

    def _rung(self, job: RungJob) -> int:
        return self._record.plan.rule.rungs[job.rung]

    def _runs(self, jobs: tuple[RungJob, ...]) -> dict[str, int]:
        """Returns the runs that jobs are waiting for, with their iterations: starts first made, then forks of them."""
        goals: dict[str, int] = {}
        record = self._record
        trials = self._record.trials()
        for job in jobs:
            for seed in record.seeds:
                setting = trials[job.trial].setting
                start = self._start(record.starts.start(setting, seed))
                if start.iteration < 0:
                    goals[start.id] = 0
                    continue
                run = self._fork(start, job.trial, seed, record.starts.own_overrides(setting))
                if self._ledger.runs.find(run).iteration < self._rung(job):
                    goals[run] = self._rung(job)
        return goals

    def _start(self, start: SharedStart) -> RunRow:
        """Returns the run of a start, which is created, or its creation finished, if need be."""
        record = self._record
        row = record.members().get(start.name)
        changes = [*start.overrides(), *SWEEP.tags(record.name, start.name)]
        if row is None:
            spec = override_spec(record.run_spec, changes, f"the spec of sweep {record.name}")
            copies = self._home.run_folder(record.name)
            by = maker_of(self._ledger, record.name)
            return self._ledger.runs.find(
                create_run(home=self._home, spec=spec, copies=copies, by=by, read_block=read_block)
            )
        if row.state == "created" and row.id != record.name:
            spec = override_spec(record.run_spec, changes, f"the spec of sweep {record.name}")
            finish_run(self._home, row.id, spec, self._home.run_folder(record.name))
        if row.iteration == 0:
            self._require_metric(row.id)
        return row

    def _fork(self, start: RunRow, trial: int, seed: int, overrides: list[str]) -> str:
        record = self._record
        name = trial_name(trial, seed)
        row = record.members().get(name)
        changes = [*overrides, *SWEEP.tags(record.name, name)]
        return whole_fork(
            home=self._home, ledger=self._ledger, run=row.id if row else None, start=start.id, overrides=changes
        )

    def _require_metric(self, start: str) -> None:
        """Raises `ConfigurationError` if an evaluation does not measure what it has to."""
        metric = self._record.spec.metric
        known = [each.key for each in self._ledger.series.keys(start) if each.key.startswith(EVALUATION)]
        if metric.startswith(EVALUATION) and metric not in known:
            raise ConfigurationError(
                f"sweep {self._record.name}: metric {metric}: the runs' evaluation measures {', '.join(known) or 'nothing'}"
            )
