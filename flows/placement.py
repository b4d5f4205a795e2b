"""An iteration's placement: what the policy sees, the decision as the ledger has it, and what then happened.

A decision is recorded before it takes effect, with everything that it was made from; whoever recovers obeys it. The work of an
iteration is kept as a file of the run, whose digest stands in the decision's outcome, so that later decisions and
`yatt placement replay` plan with the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from db.records import DecisionRow, ShardRow
from flows.placement_inputs import REMEMBERED, Inputs, recorded_work
from flows.placement_work import RecordedWork, work_file, write_work
from yatt_core.controllers.pool import constants_known, pool_setting
from yatt_core.data.shard_log import read_shard_work
from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.fixed import Hold
from yatt_core.placement.seen import Conduct, IterationTelemetry, Usage
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.spec.roles import device_judges

if TYPE_CHECKING:
    from flows.experience import Experience
    from flows.segment import Segment

log = logging.getLogger("yatt_core.flow")
MOST_ACTIONS = 200
"""Of an iteration's hand-overs; a longer list is cut in the ledger, and whole in the file."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an iteration's collecting took. sha256: of its file."""

    recorded: RecordedWork
    sha256: str


def decide(segment: Segment, iteration: int, state: Mapping[str, Any]) -> tuple[DecisionRow, Conduct]:
    """The decision in force, recorded now unless an earlier driver did; and how to carry it on within the iteration."""
    spec = segment.spec
    past, names = past_of(segment, iteration) if device_judges(spec) else ((), ())
    inputs = Inputs(pool_setting(spec), past, names, state)
    segment.placed, segment.work = inputs, None
    plan = segment.foresight.plan(inputs, segment.fleet.deadline)
    _require_portable(plan.conduct)
    row = DecisionRow(
        branch=segment.branch,
        iteration=iteration,
        seq=0,
        inputs=inputs.to_json()
        | {
            "policy": {"placement": spec.placement.model_dump(mode="json"), "constants_known": constants_known(spec)},
            "devices": segment.start.devices,
            "seconds": dict(segment.last_seconds),
        },
        decision={
            "mode": spec.placement.mode,
            "start": plan.roles,
            "roles": _roles_by_device(plan.roles, segment.start.devices, spec.trainer.engine.ranks),
            "state": plan.state,
        },
        prediction={} if plan.prediction_s is None else {"collect": plan.prediction_s},
        reason=plan.reason,
    )
    recorded = segment.ledger.records.decision(segment.fence, row)
    if recorded.decision == row.decision:
        return recorded, plan.conduct
    if "start" not in recorded.decision:
        # Made before judges shared the devices: all instances roll out, as they did then.
        everyone = {"start": ROLLOUT * len(plan.roles), "state": {}}
        return replace(recorded, decision={**recorded.decision, **everyone}), Hold()
    # Files that it was made from are gone, or the policy has changed: its roles are obeyed, and nobody improves on them.
    log.warning("iteration %d: the recorded placement is not what its policy would say now; it is obeyed", iteration)
    return recorded, Hold()


def _require_portable(conduct: Conduct) -> None:
    """Raises `ConfigurationError` for a conduct that cannot go to the dispatcher's process."""
    try:
        cloudpickle.dumps(conduct)
    except (Exception, SystemExit) as error:  # a conduct of one's own may say how it is pickled
        raise ConfigurationError(
            f"placement.mode: its policy's conduct cannot go to the process where it acts: {failure_text(error)}"
        ) from error


def past_of(segment: Segment, iteration: int) -> tuple[tuple[IterationTelemetry, ...], tuple[Mapping[str, Any], ...]]:
    """Work of the newest iterations before one, as far as their files are whole, and their names."""
    past, names = [], []
    for number in range(max(1, iteration - REMEMBERED), iteration):
        commit = segment.ledger.commits.at(segment.run, number)
        found = None if commit is None else recorded_work(segment.ledger, commit, segment.home.run_folder(commit.run))
        if commit is not None and found is not None:
            telemetry, sha256 = found
            past.append(telemetry)
            names.append(_name(commit.run, commit.branch, number, sha256))
    return tuple(past), tuple(names)


def drop_usage(segment: Segment) -> None:
    """What the devices did before an iteration, such as an evaluation, is none of its work."""
    if device_judges(segment.spec):
        segment.fleet.usage()
    segment.usage = ()


def note_work(segment: Segment, iteration: int, decision: DecisionRow, experience: Experience) -> None:
    """Keeps what collecting took, and begins to plan the next iteration with it."""
    if not device_judges(segment.spec):
        return
    # Of all attempts at it: what a failed one did was work too.
    segment.usage += segment.fleet.usage()
    report = segment.fleet.placement_report()
    telemetry = IterationTelemetry(
        str(decision.decision["start"]), _waves_of(segment, experience), segment.usage, report.collect_s, report.judging_s,
    )  # fmt: skip
    if report.defect:
        segment.observer.warned(
            f"iteration {iteration}: the placement's conduct failed, roles stayed as they were: {report.defect}"
        )
    work = RecordedWork(telemetry, report.actions)
    path = work_file(segment.folder, segment.branch, iteration)
    segment.work = Work(work, write_work(path, work, decision.inputs["setting"]))
    if segment.placed is not None:
        name = _name(segment.run, segment.branch, iteration, segment.work.sha256)
        segment.foresight.begin(segment.placed.after(telemetry, name, decision.decision["state"]))


def record_outcome(segment: Segment, iteration: int, seconds: Mapping[str, float]) -> tuple[Usage, ...]:
    """Writes beside the iteration's decision what really happened, once, whoever commits first; returns the devices' work."""
    decision = segment.ledger.records.decisions(segment.run, segment.branch, iteration)[-1]
    outcome: dict[str, Any] = {"seconds": dict(seconds)}
    work = segment.work
    if work is not None:
        outcome |= {
            "work_sha256": work.sha256,
            "collect_s": work.recorded.telemetry.collect_s,
            "judging_s": work.recorded.telemetry.judging_s,
            "actions": list(work.recorded.actions[:MOST_ACTIONS]),
            "actions_total": len(work.recorded.actions),
        }
    if decision.outcome is None:
        segment.ledger.records.decision_outcome(segment.fence, segment.branch, iteration, decision.seq, outcome)
    return () if work is None else work.recorded.telemetry.usage


def _waves_of(segment: Segment, experience: Experience) -> tuple[WaveWork, ...]:
    """What the iteration's samples took, wave by wave; groups are numbered by their prompts' order in the wave."""
    by_wave: dict[int, list[ShardRow]] = {}
    for row in experience.shards:
        by_wave.setdefault(row.wave, []).append(row)
    waves = []
    for rows in by_wave.values():
        samples: list[SampleWork] = []
        groups: dict[int, int] = {}
        for row in rows:
            work = read_shard_work(segment.folder, row)
            columns = zip(work.ordinals, work.prompt_tokens, work.response_tokens, work.judged, work.read, strict=True)
            for ordinal, prompt, response, judged, read in columns:
                first = ordinal not in groups
                group = groups.setdefault(ordinal, len(groups))
                samples.append(SampleWork(group, first, prompt, (response,), (), judged, read))
        waves.append(WaveWork(tuple(samples), (True,) * len(groups)))
    return tuple(waves)


def _name(run: str, branch: int, iteration: int, sha256: str) -> dict[str, Any]:
    return {"run": run, "branch": branch, "iteration": iteration, "sha256": sha256}


def _roles_by_device(start: str, devices: int, ranks: int) -> dict[str, list[str]]:
    """Who sits on each device when experience is made, and when it is learnt from."""
    names = [f"{'judge' if role == JUDGE else 'rollout'}-{index}" for index, role in enumerate(start)]
    return {
        "collect": [names[device % len(names)] for device in range(devices)],
        "learn": [f"trainer-{device % ranks}" for device in range(devices)],
    }
