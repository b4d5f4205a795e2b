"""A sweep for commands and pages: its trials with their values at each rung, its winner, its cost, and what comes next.

Consumes the ledger; produces `SweepView`, plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from db.ledger import Ledger
from db.write.runs import RunRow
from flows.sweeps.plan import Conclude, Drive, Promote, Propose, Settle, Step, SweepFacts
from flows.sweeps.record import SWEEP, WINNER, SweepRecord
from flows.sweeps.schedule import RungJob
from flows.sweeps.space import Setting
from flows.sweeps.spec import changed_spec
from ops.presentation.columns import Column, Columns, LinkCell, runs_cell
from ops.sweeps.words import short_keys, value_text
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial.

    state: `under way`, `stopped` (at a rung, from which it can be resumed), `finished` or `failed`.
    iteration: newest iteration that all of its runs have committed; 0 before.
    values: mean over the seeds at each rung that it has reached, by iteration.
    runs: its runs by seed.
    """

    trial: int
    setting: Setting
    state: str
    iteration: int
    values: Mapping[int, float]
    failure: str | None
    runs: Mapping[int, str]

    @property
    def value(self) -> float | None:
        """The value at the last rung that it has reached."""
        return list(self.values.values())[-1] if self.values else None


@dataclass(frozen=True, slots=True)
class SweepView:
    """A sweep.

    planned: number of trials.
    rungs: iterations at which trials are compared; at the last one they end.
    starts: the runs at iteration 0 of which the trials are forks.
    own_start: the keys whose values need a start of their own.
    winner: number of the best trial; None before the end, or if all have failed.
    tied: numbers of the trials that are as good as the best one, itself included; empty if there is no winner.
    iterations: iterations of all trials and seeds so far.
    iterations_fraction: the same as a fraction of all trials run to their ends.
    following: what the sweep does next; empty if it is done.
    """

    sweep: str
    sampler: str
    asha: bool
    metric: str
    goal: str
    planned: int
    rungs: tuple[int, ...]
    seeds: tuple[int, ...]
    keys: tuple[str, ...]
    starts: tuple[str, ...]
    own_start: tuple[str, ...]
    trials: tuple[TrialView, ...]
    winner: int | None
    tied: tuple[int, ...]
    winner_value: float | None
    winner_setting: Setting | None
    iterations: int
    iterations_fraction: float
    following: str


def sweep_view(ledger: Ledger, run: str) -> SweepView:
    """Returns the sweep to which a run belongs. Raises `ConfigurationError` if it belongs to none."""
    record = SweepRecord.of(ledger, run)
    facts = record.facts()
    members = record.members()
    spec = record.spec
    under_way = {job.trial for job in record.plan.schedule(facts).open}
    failures = {number: _failure(record, facts, number, members) for number in range(len(facts.trials))}
    trials = tuple(
        _trial(
            record=record, facts=facts, number=number, members=members, under_way=under_way, failure=failures[number]
        )
        for number in failures
    )
    iterations = sum(max(0, row.iteration) for number in failures for row in record.runs_of(number, members).values())
    ended = [body for body in record.bodies(WINNER) if body["trial"] is not None]
    winner: Mapping[str, Any] = ended[0] if ended else {}
    return SweepView(
        sweep=record.name,
        sampler=spec.sampler,
        asha=spec.asha is not None,
        metric=spec.metric,
        goal=spec.goal,
        planned=spec.count,
        rungs=record.plan.rule.rungs,
        seeds=record.seeds,
        keys=tuple(spec.space),
        starts=tuple(row.id for name, row in members.items() if name.startswith("start/")),
        own_start=record.starts.keys,
        trials=trials,
        winner=winner.get("trial"),
        tied=tuple(record.plan.schedule(facts).tied()) if winner else (),
        winner_value=winner.get("value"),
        winner_setting=winner.get("setting"),
        iterations=iterations,
        iterations_fraction=iterations / (spec.count * len(record.seeds) * record.run_spec.iterations),
        following=_in_words(record.plan.next_step(facts)),
    )


def sweep_list(ledger: Ledger) -> tuple[SweepView, ...]:
    """Returns the sweeps among the newest runs, newest first."""
    return tuple(sweep_view(ledger, name) for name in SWEEP.records(ledger))


def winner_spec(ledger: Ledger, sweep: str) -> RunSpec:
    """Returns the spec of a sweep's best trial. Raises `ConfigurationError` before there is one."""
    record = SweepRecord.of(ledger, sweep)
    found = [body["setting"] for body in record.bodies(WINNER) if body["trial"] is not None]
    if not found:
        raise ConfigurationError(f"sweep {record.name} has no winner yet; `yatt sweep resume {record.name}` goes on")
    return changed_spec(record.run_spec, found[0])


def _failure(record: SweepRecord, facts: SweepFacts, number: int, members: Mapping[str, RunRow]) -> str | None:
    reasons = [facts.trials[number].refusal]
    reasons += [record.failure(row) for row in record.runs_of(number, members).values() if number in facts.failed]
    return next((reason for reason in reasons if reason is not None), None)


def _trial(
    record: SweepRecord,
    facts: SweepFacts,
    number: int,
    members: Mapping[str, RunRow],
    under_way: set[int],
    failure: str | None,
) -> TrialView:
    rungs = record.plan.rule.rungs
    values = {
        rung: value
        for place, rung in enumerate(rungs)
        if (value := facts.values.get(RungJob(number, place))) is not None
    }
    if failure is not None:
        state = "failed"
    elif number in under_way:
        state = "under way"
    else:
        state = "finished" if rungs[-1] in values else "stopped"
    runs = {seed: row.id for seed, row in record.runs_of(number, members).items()}
    reached = max(0, facts.reached.get(number, 0))
    return TrialView(
        trial=number,
        setting=facts.trials[number].setting,
        state=state,
        iteration=reached,
        values=values,
        failure=failure,
        runs=runs,
    )


def _in_words(step: Step | None) -> str:
    match step:
        case None:
            return ""
        case Propose(trial, _):
            return f"propose trial {trial}"
        case Promote(job, _, _):
            return f"promote trial {job.trial}"
        case Drive(jobs):
            return f"drive {', '.join(f'trial {job.trial}' for job in jobs)}"
        case Settle(job, _):
            return f"settle trial {job.trial}"
        case Conclude():
            return "choose the winner"


SWEEPS: Columns[SweepView] = (
    Column("sweep", lambda view: LinkCell(view.sweep, f"/sweeps/{quote(view.sweep)}"), heads=True),
    Column("keys", lambda view: ", ".join(view.keys), style="break"),
    Column("trials", lambda view: f"{len(view.trials)} of {view.planned}", number=True),
    Column("metric", lambda view: view.metric),
    Column("best", lambda view: view.winner_value, number=True),
    Column("iterations", lambda view: view.iterations, number=True),
    Column("next", lambda view: view.following or "done"),
)


def trial_columns(view: SweepView) -> Columns[TrialView]:
    """Returns the columns of a sweep's trials: a column for each key that it varies, and for each rung."""
    names = short_keys(view.keys)
    return (
        Column("trial", lambda trial: str(trial.trial), heads=True),
        *(_setting_column(key, names[key]) for key in view.keys),
        *(_rung_column(rung) for rung in view.rungs),
        Column("iteration", lambda trial: trial.iteration, number=True),
        Column("state", lambda trial: trial.state if trial.failure is None else f"{trial.state}: {trial.failure}"),
        Column("runs", lambda trial: runs_cell(trial.runs.values())),
    )


def _setting_column(key: str, name: str) -> Column[TrialView]:
    return Column(name, lambda trial: value_text(trial.setting[key]), verbatim=True)


def _rung_column(rung: int) -> Column[TrialView]:
    return Column(f"at {rung}", lambda trial: trial.values.get(rung), number=True)
