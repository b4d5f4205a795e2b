"""An iteration's placement: the policy's inputs, the recorded decision, and its outcome.

A decision is recorded before it takes effect, with all its inputs; a recovering driver obeys it. The work of an
iteration is kept as a file in the run's folder. The decision's outcome holds the file's digest, so later decisions
and `yatt placement replay` plan with the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from ray import cloudpickle

from db.write.records import DecisionRow, ShardRow
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.lending import lending_in, lending_pool
from flows.placement.inputs import REMEMBERED, DecisionInputs, recorded_inputs, recorded_work
from flows.placement.work_files import RecordedWork, work_file, write_work
from yatt_core.dispatch.pool import constants_known
from yatt_core.errors import ConfigurationError
from yatt_core.experience.shard_log import read_shard_work
from yatt_core.installed import failure_text
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.lending import LENT, Levelled
from yatt_core.placement.occupancy import changes_of, switch_times
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import IterationTelemetry, RuntimePolicy, Setting, Usage
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.spec.roles import device_judges
from yatt_core.storage.lacking import fetch_lacking

log = logging.getLogger("yatt_core.flow")
MOST_ACTIONS = 200
"""Maximum number of an iteration's actions kept in the ledger; the file has all of them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement in force for an iteration.

    decision: the recorded decision.
    inputs: the inputs that a decision made now would have.
    """

    decision: DecisionRow
    inputs: DecisionInputs

    @property
    def lends(self) -> bool:
        """Whether the trainer's devices generate while it does not learn, if they are to be lent at all."""
        return bool(self.decision.decision.get(LENT))


@dataclass(frozen=True, slots=True)
class CollectedWork:
    """The work that an iteration's `collect` took.

    sha256: digest of the file that keeps it.
    """

    recorded: RecordedWork
    sha256: str

    @property
    def usage(self) -> tuple[Usage, ...]:
        """The work of each device."""
        return self.recorded.telemetry.usage


def decide(session: DriverSession, iteration: int, state: Mapping[str, Any]) -> tuple[Placement, RuntimePolicy]:
    """Returns the decision in force and the runtime policy for the iteration.

    Records the decision unless an earlier driver has already done so.
    """
    context = session.context
    spec = session.context.spec
    devices = session.start.devices
    # With a lag, iterations before it may not be committed yet: their work is known to the plan that was begun ahead.
    begun = session.prefetch.expected(iteration) if spec.asynchrony.lag else None
    lending, of_lending = lending_in(context, iteration)
    pool = lending_pool(spec, lending, of_lending)
    inputs = begun or _inputs_of(context, iteration, pool, state)
    if (inputs.setting.lent_after_s is None) != (pool.lent_after_s is None):
        # It was begun while another decision about lending was in force: what it expects will not happen.
        inputs = replace(inputs, setting=pool)
    planned_from = _recorded_inputs(context, iteration, inputs) or inputs
    plan = session.prefetch.plan(iteration, planned_from, session.actors.deadline)
    _require_portable(plan.runtime_policy)
    runtime_policy = plan.runtime_policy
    if lending is not None and lending.lends and planned_from.setting.migrates:
        runtime_policy = Levelled(runtime_policy)
    row = DecisionRow(
        branch=context.branch,
        iteration=iteration,
        seq=0,
        inputs=planned_from.to_json()
        | {
            "policy": {"placement": spec.placement.model_dump(mode="json"), "constants_known": constants_known(spec)},
            "devices": devices,
            "seconds": _seconds_before(context, iteration),
        }
        | of_lending,
        decision={
            "mode": spec.placement.mode,
            "start": plan.roles,
            "roles": roles_by_device(
                start=plan.roles,
                devices=devices,
                ranks=spec.trainer.engine.ranks,
                each=spec.devices_per_instance,
                before=spec.devices_before_engines,
            ),
            "state": plan.state,
            **({} if lending is None else {LENT: list(spec.lent_instances) if lending.lends else []}),
        },
        prediction={} if plan.prediction_s is None else {"collect": plan.prediction_s},
        reason=plan.reason if lending is None else f"{plan.reason}; {lending.reason}",
    )
    recorded = context.ledger.records.decision(context.fence, row)
    if spec.asynchrony.lag and device_judges(spec):
        behind = session.prefetch.behind(replace(inputs, setting=pool), recorded.decision.get("state", {}))
        _begin(session, iteration + 1, behind)
    if recorded.decision == row.decision:
        return Placement(recorded, inputs), runtime_policy
    if "start" not in recorded.decision:
        # A decision without judges on the devices: all instances roll out.
        everyone = {"start": ROLLOUT * len(plan.roles), "state": {}}
        obeyed = replace(recorded, decision={**recorded.decision, **everyone})
        return Placement(obeyed, inputs), Hold()
    # The decision's input files are gone, or the policy has changed: keep the recorded roles for the whole iteration.
    log.warning("iteration %d: the policy would now decide otherwise; using the recorded placement", iteration)
    return Placement(recorded, inputs), Hold()


def begin_planning(session: DriverSession, iteration: int, state: Mapping[str, Any]) -> None:
    """Starts to plan the first iteration of a session, or after a recovery, beside the start of the actors."""
    context = session.context
    if context.spec.has.judges and device_judges(context.spec):
        session.prefetch.forget()
        pool = lending_pool(context.spec, *lending_in(context, iteration))
        _begin(session, iteration, _inputs_of(context, iteration, pool, state))


def _begin(session: DriverSession, iteration: int, known: DecisionInputs) -> None:
    """Starts to plan an iteration from the inputs that `decide` will plan from, so that the plan is taken and made once."""
    session.prefetch.begin(iteration, known, _recorded_inputs(session.context, iteration, known))


def _recorded_inputs(context: RunContext, iteration: int, known: DecisionInputs) -> DecisionInputs | None:
    """Returns the inputs from which an iteration's recorded decision is planned again; None if none is recorded."""
    recorded = context.ledger.records.decisions(context.run, context.branch, iteration)
    return recorded_inputs(recorded[-1], known, context.home.run_folder) if recorded else None


def _inputs_of(context: RunContext, iteration: int, pool: Setting, state: Mapping[str, Any]) -> DecisionInputs:
    """Returns the inputs of a decision made now, as far as iterations are committed."""
    past, names = past_of(context, iteration) if device_judges(context.spec) else ((), ())
    return DecisionInputs(pool, past, names, state)


def _seconds_before(context: RunContext, iteration: int) -> dict[str, float]:
    """Returns the seconds of each phase of the previous iteration."""
    before = context.ledger.commits.at(context.run, iteration - 1)
    return {} if before is None else context.ledger.phases.seconds(before.run, before.branch, before.iteration)


def _require_portable(runtime_policy: RuntimePolicy) -> None:
    """Raises `ConfigurationError` if the runtime policy cannot be sent to the dispatcher's process."""
    try:
        cloudpickle.dumps(runtime_policy)
    except (Exception, SystemExit) as error:  # a user's runtime policy may define its own pickling
        raise ConfigurationError(
            f"placement.mode: the policy's runtime policy cannot be sent to the dispatcher: {failure_text(error)}"
        ) from error


def past_of(
    context: RunContext, iteration: int
) -> tuple[tuple[IterationTelemetry, ...], tuple[Mapping[str, Any], ...]]:
    """Returns the work of the latest iterations before this one, and the names of its files; skips damaged files."""
    past = []
    names = []
    for number in range(max(1, iteration - REMEMBERED), iteration):
        commit = context.ledger.commits.at(context.run, number)
        found = None if commit is None else recorded_work(context.ledger, commit, context.home.run_folder(commit.run))
        if commit is not None and found is not None:
            telemetry, sha256 = found
            past.append(telemetry)
            names.append(_name(commit.run, commit.branch, number, sha256))
    return tuple(past), tuple(names)


def discard_usage(session: DriverSession) -> None:
    """Discards device usage from before this iteration, such as that of an evaluation."""
    session.actors.discard_usage()


def usage_of(session: DriverSession, work: CollectedWork | None) -> tuple[Usage, ...]:
    """Returns the work of each instance during `collect`: from the record if there is one, otherwise from the instances."""
    return session.actors.usage() if work is None else work.usage


def keep_work(
    session: DriverSession, iteration: int, placement: Placement, shards: Sequence[ShardRow]
) -> CollectedWork | None:
    """Writes the work of `collect` to a file and starts to plan the next iteration; with a lag its plan has begun already.

    Returns None if no judge runs on a device.
    """
    context = session.context
    actors = session.actors
    if not device_judges(context.spec):
        return None
    decision = placement.decision
    usage = actors.usage()
    report = actors.placement_report()
    waves = _waves_of(context, shards)
    start = str(decision.decision["start"])
    switches = switch_times(changes_of(start, report.actions))
    telemetry = IterationTelemetry(
        roles=start, waves=waves, usage=usage, collect_s=report.collect_s, judging_s=report.judging_s, switches=switches
    )
    if report.defect:
        context.observer.warned(
            f"iteration {iteration}: the placement's runtime policy failed, roles were left unchanged: {report.defect}"
        )
    work = RecordedWork(telemetry, report.actions)
    path = work_file(context.folder, context.branch, iteration)
    sha256 = write_work(path, work, decision.inputs["setting"])
    name = _name(context.run, context.branch, iteration, sha256)
    if context.spec.asynchrony.lag:
        session.prefetch.note(telemetry, name)
    else:
        _begin(session, iteration + 1, placement.inputs.after(telemetry, name, decision.decision["state"]))
    return CollectedWork(work, sha256)


def record_outcome(
    context: RunContext, iteration: int, seconds: Mapping[str, float], work: CollectedWork | None
) -> None:
    """Records the actual outcome with the iteration's decision, unless an earlier driver has already done so."""
    decision = context.ledger.records.decisions(context.run, context.branch, iteration)[-1]
    if decision.outcome is not None:
        return
    outcome: dict[str, Any] = {"seconds": dict(seconds)}
    if work is not None:
        outcome |= {
            "work_sha256": work.sha256,
            "collect_s": work.recorded.telemetry.collect_s,
            "judging_s": work.recorded.telemetry.judging_s,
            "actions": list(work.recorded.actions[:MOST_ACTIONS]),
            "actions_total": len(work.recorded.actions),
        }
    context.ledger.records.decision_outcome(
        fence=context.fence, branch=context.branch, iteration=iteration, seq=decision.seq, outcome=outcome
    )


def _waves_of(context: RunContext, shards: Sequence[ShardRow]) -> tuple[WaveWork, ...]:
    """Returns the work of the iteration's samples by wave; groups are numbered in the order of their prompts."""
    by_wave: dict[int, list[ShardRow]] = {}
    for row in shards:
        by_wave.setdefault(row.wave, []).append(row)
    waves = []
    fetch_lacking(context.store, context.folder, shards)
    for rows in by_wave.values():
        samples: list[SampleWork] = []
        groups: dict[int, int] = {}
        for row in rows:
            work = read_shard_work(context.folder, row)
            columns = zip(
                work.ordinals,
                work.prompt_tokens,
                work.response_tokens,
                work.judged,
                work.read,
                work.goes_on or repeat(False, len(work.ordinals)),
                strict=True,
            )
            for ordinal, prompt, response, judged, read, goes_on in columns:
                # What was drawn before is of no other sample, and read again: a cached prompt does not help.
                first = ordinal not in groups or goes_on
                group = groups.setdefault(ordinal, len(groups))
                samples.append(
                    SampleWork(
                        group=group, first=first, prompt=prompt, turns=(response,), waits=(), judge=judged, read=read
                    )
                )
        waves.append(WaveWork(tuple(samples), (True,) * len(groups)))
    return tuple(waves)


def _name(run: str, branch: int, iteration: int, sha256: str) -> dict[str, Any]:
    return {"run": run, "branch": branch, "iteration": iteration, "sha256": sha256}


def roles_by_device(start: str, devices: int, ranks: int, each: int = 1, before: int = 0) -> dict[str, list[list[str]]]:
    """Returns the actors on each device that the run uses, during `collect` and during `learn`.

    A run reserves as many devices as its instances and ranks need, at most all; actors beyond the last device share devices
    (`yatt_core.cluster.reservation`).

    each: number of devices of an instance.
    before: number of the first devices, which no instance has.
    """
    instances = [f"{'judge' if role == JUDGE else 'rollout'}-{index}" for index, role in enumerate(start)]
    instances = [name for name in instances for _ in range(each)]
    trainers = [f"trainer-{rank}" for rank in range(ranks)]
    used = min(devices, max(before + len(instances), ranks))
    apart = min(before, used - 1)
    generating = used - apart
    return {
        "collect": [[]] * apart + [instances[device::generating] for device in range(generating)],
        "learn": [trainers[device::used] for device in range(used)],
    }
