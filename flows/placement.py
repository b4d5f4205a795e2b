"""An iteration's placement: what the policy sees, the decision as the ledger has it, and what then happened.

A decision is recorded before it takes effect, with everything that it was made from; whoever recovers obeys it. The work of an
iteration is kept as a file of the run, whose digest stands in the decision's outcome, so that later decisions and
`yatt placement replay` plan with the same numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.commit import CommitRow
from db.ledger import Ledger
from db.records import DecisionRow, ShardRow
from flows.placement_work import RecordedWork, load_work, work_file, write_work
from yatt_core.controllers.pool import constants_known, pool_setting
from yatt_core.data.shard_log import read_shard_work
from yatt_core.errors import DataError
from yatt_core.placement.actions import JUDGE
from yatt_core.placement.fixed import Hold
from yatt_core.placement.records import setting_from_json, setting_to_json
from yatt_core.placement.registry import find_policy
from yatt_core.placement.seen import Conduct, IterationTelemetry, PlacementPolicy, Plan, Setting
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.spec.placement import PlacementSpec
from yatt_core.spec.roles import device_judges

if TYPE_CHECKING:
    from flows.experience import Experience
    from flows.segment import Segment

log = logging.getLogger("yatt_core.flow")
REMEMBERED = 4
"""Iterations whose work a policy is shown."""
MOST_ACTIONS = 200
"""Of an iteration's hand-overs; a longer list is cut in the ledger, and whole in the file."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a decision is made from. past: the newest iterations, the latest last. names: of these, with the files' digests."""

    setting: Setting
    past: tuple[IterationTelemetry, ...]
    names: tuple[Mapping[str, Any], ...]
    state: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As the ledger keeps it; the past by name."""
        return {"setting": setting_to_json(self.setting), "past": list(self.names), "state": dict(self.state)}

    def plan(self, policy: PlacementPolicy) -> Plan:
        """What a policy makes of it."""
        return policy.plan(self.setting, self.past, dict(self.state))


def decide(segment: Segment, iteration: int, state: Mapping[str, Any]) -> tuple[DecisionRow, Conduct]:
    """The decision in force, recorded now unless an earlier driver did; and how to carry it on within the iteration."""
    spec = segment.spec
    past, names = past_of(segment, iteration) if device_judges(spec) else ((), ())
    inputs = Inputs(pool_setting(spec), past, names, state)
    plan = inputs.plan(segment.policy)
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
    if recorded.decision == json.loads(json.dumps(row.decision)):
        return recorded, plan.conduct
    # Files that it was made from are gone, or the policy has changed: its roles are obeyed, and nobody improves on them.
    log.warning("iteration %d: the recorded placement is not what its policy would say now; it is obeyed", iteration)
    return recorded, Hold()


def past_of(segment: Segment, iteration: int) -> tuple[tuple[IterationTelemetry, ...], tuple[Mapping[str, Any], ...]]:
    """Work of the newest iterations before one, as far as their files are whole, and their names."""
    past, names = [], []
    for number in range(max(1, iteration - REMEMBERED), iteration):
        commit = segment.ledger.commits.at(segment.run, number)
        found = None if commit is None else recorded_work(segment.ledger, commit, segment.home.run_folder(commit.run))
        if commit is not None and found is not None:
            telemetry, sha256 = found
            past.append(telemetry)
            names.append({"run": commit.run, "branch": commit.branch, "iteration": number, "sha256": sha256})
    return tuple(past), tuple(names)


def recorded_work(ledger: Ledger, commit: CommitRow, run_folder: Path) -> tuple[IterationTelemetry, str] | None:
    """The work of a committed iteration, and its file's digest; none where there is no file, or another than was recorded."""
    decisions = ledger.records.decisions(commit.run, commit.branch, commit.iteration)
    outcome = decisions[-1].outcome if decisions else None
    sha256 = None if outcome is None else outcome.get("work_sha256")
    if sha256 is None:
        return None
    try:
        work = load_work(work_file(run_folder, commit.branch, commit.iteration), sha256)
    except DataError as error:
        log.warning("iteration %d: the placement is planned without its work: %s", commit.iteration, error)
        return None
    return work.telemetry, str(sha256)


def inputs_of(row: DecisionRow, past: tuple[IterationTelemetry, ...]) -> Inputs:
    """What a recorded decision was made from. past: the work that it names."""
    return Inputs(setting_from_json(row.inputs["setting"]), past, tuple(row.inputs["past"]), dict(row.inputs["state"]))


def policy_of(row: DecisionRow) -> PlacementPolicy:
    """The policy that made a recorded decision. Raises `ConfigurationError` where it is not installed any more."""
    policy = row.inputs["policy"]
    return find_policy(PlacementSpec.model_validate(policy["placement"]), bool(policy["constants_known"]))


def drop_usage(segment: Segment) -> None:
    """What the devices did before an iteration, such as an evaluation, is none of its work."""
    if device_judges(segment.spec):
        segment.fleet.usage()
    segment.usage = ()


def take_usage(segment: Segment) -> None:
    """Takes down what the devices did for an iteration's experience, before they do anything else."""
    if device_judges(segment.spec):
        segment.usage += segment.fleet.usage()


def record_outcome(segment: Segment, iteration: int, experience: Experience, seconds: Mapping[str, float]) -> None:
    """Writes beside the iteration's decision what really happened; once, whoever commits first."""
    decision = segment.ledger.records.decisions(segment.run, segment.branch, iteration)[-1]
    if decision.outcome is not None:
        return
    outcome: dict[str, Any] = {"seconds": dict(seconds)}
    if device_judges(segment.spec):
        report = segment.fleet.placement_report()
        telemetry = IterationTelemetry(
            str(decision.decision["start"]), _waves_of(segment, experience), segment.usage, report.collect_s, report.judging_s,
        )  # fmt: skip
        path, setting = work_file(segment.folder, segment.branch, iteration), decision.inputs["setting"]
        outcome |= {
            "work_sha256": write_work(path, RecordedWork(telemetry, report.actions), setting),
            "collect_s": telemetry.collect_s,
            "judging_s": telemetry.judging_s,
            "actions": report.actions[:MOST_ACTIONS],
            "actions_total": len(report.actions),
        }
    segment.ledger.records.decision_outcome(segment.fence, segment.branch, iteration, decision.seq, outcome)


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


def _roles_by_device(start: str, devices: int, ranks: int) -> dict[str, list[str]]:
    """Who sits on each device when experience is made, and when it is learnt from."""
    names = [f"{'judge' if role == JUDGE else 'rollout'}-{index}" for index, role in enumerate(start)]
    return {
        "collect": [names[device % len(names)] for device in range(devices)],
        "learn": [f"trainer-{device % ranks}" for device in range(devices)],
    }
