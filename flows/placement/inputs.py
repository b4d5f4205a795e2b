"""The inputs of a placement decision, including the recorded work of past iterations.

Consumes the ledger and a run's files. Produces inputs for a policy's plan, whether made now, ahead of time, or in a
replay.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from db.write.commit import CommitRow
from db.write.records import DecisionRow
from flows.placement.work_files import load_work, work_file
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.installed import failure_text
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.records import setting_from_json, setting_to_json
from yatt_core.placement.seen import IterationTelemetry, PlacementPolicy, Plan, Setting
from yatt_core.printable import printable
from yatt_core.spec.sections.placement import PlacementSpec

log = logging.getLogger("yatt_core.flow")

REMEMBERED = 4
"""Number of past iterations whose work a policy sees."""
_FROM_NOW = "planning a recorded placement again from what is known now: %s"


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The inputs of a decision.

    past: the work of the most recent iterations, latest last.
    names: for each of these, the run, branch and iteration, and the digest of its file.
    state: the state that the policy returned with its previous decision.
    """

    setting: Setting
    past: tuple[IterationTelemetry, ...]
    names: tuple[Mapping[str, Any], ...]
    state: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the inputs as the ledger keeps them; past work is only named, not included."""
        return {"setting": setting_to_json(self.setting), "past": list(self.names), "state": dict(self.state)}

    def plan(self, policy: PlacementPolicy) -> Plan:
        """Returns a policy's plan for these inputs.

        Raises `ConfigurationError` if the policy raises or its plan is invalid.
        """
        try:
            plan: object = policy.plan(self.setting, self.past, _as_recorded(self.state))
        except (Exception, SystemExit) as error:  # a user's policy may raise anything
            raise ConfigurationError(f"placement.mode: the policy failed: {failure_text(error)}") from error
        return checked_plan(plan, len(self.setting.speeds))

    def after(self, telemetry: IterationTelemetry, name: Mapping[str, Any], state: Mapping[str, Any]) -> DecisionInputs:
        """Returns the inputs of the next decision.

        telemetry, name: the work and name of the iteration in between.
        state: the state of that iteration's decision.
        """
        past = (*self.past, telemetry)[-REMEMBERED:]
        names = (*self.names, name)[-REMEMBERED:]
        return DecisionInputs(self.setting, past, names, state)


def checked_plan(plan: object, instances: int) -> Plan:
    """Validates a policy's plan and returns it with its values as the ledger keeps them.

    Raises `ConfigurationError` if the plan cannot be recorded or applied.
    """
    if not isinstance(plan, Plan):
        raise ConfigurationError(f"placement.mode: the policy returned {type(plan).__name__}; expected a Plan")
    if not isinstance(plan.roles, str) or len(plan.roles) != instances or set(plan.roles) - {ROLLOUT, JUDGE}:
        raise ConfigurationError(
            f"placement.mode: the policy returned the roles {plan.roles!r:.80}; expected {instances} letters, each "
            f"{ROLLOUT} or {JUDGE}"
        )
    predicted = plan.prediction_s
    if predicted is not None and not (isinstance(predicted, int | float) and 0.0 <= predicted < math.inf):
        raise ConfigurationError(
            f"placement.mode: the policy predicted {predicted!r:.80}; expected seconds of collect, or None"
        )
    if not isinstance(plan.reason, str) or not callable(getattr(plan.runtime_policy, "act", None)):
        raise ConfigurationError(
            "placement.mode: the policy's plan needs a reason (a string) and a runtime policy with a method `act`"
        )
    try:
        state = _as_recorded(plan.state)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"placement.mode: the policy returned a state that cannot be recorded ({failure_text(error)}); expected a "
            "dictionary of plain values"
        ) from None
    return Plan(
        roles=plan.roles,
        runtime_policy=plan.runtime_policy,
        prediction_s=predicted,
        reason=printable(plan.reason),
        state=state,
    )


def _as_recorded(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a state as it would come back from the ledger, so that a policy cannot change the original."""
    kept: dict[str, Any] = json.loads(json.dumps(dict(state), allow_nan=False))
    return kept


def recorded_work(ledger: Ledger, commit: CommitRow, run_folder: Path) -> tuple[IterationTelemetry, str] | None:
    """Returns the work of a committed iteration and its file's digest; None if the file is missing or changed."""
    decisions = ledger.records.decisions(commit.run, commit.branch, commit.iteration)
    outcome = decisions[-1].outcome if decisions else None
    sha256 = None if outcome is None else outcome.get("work_sha256")
    if sha256 is None:
        return None
    try:
        work = load_work(work_file(run_folder, commit.branch, commit.iteration), sha256)
    except DataError as error:
        log.warning("planning the placement without the work of iteration %d: %s", commit.iteration, error)
        return None
    return work.telemetry, str(sha256)


def inputs_of(row: DecisionRow, past: tuple[IterationTelemetry, ...]) -> DecisionInputs:
    """Returns the inputs of a recorded decision. Raises `DataError` if another version recorded a setting unknown here.

    past: the work that the decision names.
    """
    return DecisionInputs(
        setting_from_json(row.inputs["setting"]), past, tuple(row.inputs["past"]), dict(row.inputs["state"])
    )


def recorded_inputs(row: DecisionRow, now: DecisionInputs, folder_of: Callable[[str], Path]) -> DecisionInputs:
    """Returns the inputs from which a recorded decision is planned again: its own, or those of now if that cannot be.

    Its own differ from those of now if, with a lag, it was planned before the latest work was known and lending was decided,
    and if another version counted otherwise how many moved sequences an instance works on. They are of no use for a pool that
    has other instances now, for a setting that only another version knows, nor once files of past work are gone or changed.

    With a lag a decision may name work of an iteration that is not committed yet. If the driver is lost then, the next one
    finishes that iteration again and overwrites the file with the seconds that it measured, so that the digest differs. The
    decision is then planned from the inputs of now; if that gives another plan, the recorded roles are held throughout.

    folder_of: returns the folder of a run.
    """
    if not {"setting", "past", "state"} <= row.inputs.keys():
        return now
    try:
        setting = setting_from_json(row.inputs["setting"])
    except DataError as error:
        log.warning(_FROM_NOW, error)
        return now
    pool = replace(now.setting, moved=setting.moved, lent=setting.lent, lent_after_s=setting.lent_after_s)
    if setting != pool:
        return now
    if tuple(row.inputs["past"]) == now.names:
        return inputs_of(row, now.past)
    past = []
    for name in row.inputs["past"]:
        path = work_file(folder_of(str(name["run"])), int(name["branch"]), int(name["iteration"]))
        try:
            past.append(load_work(path, str(name["sha256"])).telemetry)
        except DataError as error:
            log.warning(_FROM_NOW, error)
            return now
    return inputs_of(row, tuple(past))


def policy_of(row: DecisionRow) -> PlacementPolicy:
    """Returns the policy that made a recorded decision. Raises `ConfigurationError` if it is no longer installed."""
    policy = row.inputs["policy"]
    return find_policy(PlacementSpec.model_validate(policy["placement"]), bool(policy["constants_known"]))
