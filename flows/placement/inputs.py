"""What a placement decision is made from, and where an iteration's work is kept for the decisions to come.

Consumes the ledger and the files of a run; produces inputs that a policy plans with: now, ahead, or again from the record.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
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
from yatt_core.spec.sections.placement import PlacementSpec

log = logging.getLogger("yatt_core.flow")

REMEMBERED = 4
"""Iterations whose work a policy is shown."""


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
        """What a policy makes of it. Raises `ConfigurationError` for a policy that raises, or whose plan cannot be."""
        try:
            plan: object = policy.plan(self.setting, self.past, _as_recorded(self.state))
        except (Exception, SystemExit) as error:  # whatever a policy of one's own raises is that policy's failure
            raise ConfigurationError(f"placement.mode: its policy failed: {failure_text(error)}") from error
        return checked_plan(plan, len(self.setting.speeds))

    def after(self, telemetry: IterationTelemetry, name: Mapping[str, Any], state: Mapping[str, Any]) -> Inputs:
        """Of the decision behind this one. telemetry, name: of the iteration between. state: what its decision remembers."""
        past, names = (*self.past, telemetry)[-REMEMBERED:], (*self.names, name)[-REMEMBERED:]
        return Inputs(self.setting, past, names, state)


def checked_plan(plan: object, instances: int) -> Plan:
    """What a policy gave, once it is a plan that can be recorded and carried on, in the words and values that the ledger keeps.

    Raises `ConfigurationError`.
    """
    if not isinstance(plan, Plan):
        raise ConfigurationError(f"placement.mode: its policy gives {type(plan).__name__}; right would be a Plan")
    if not isinstance(plan.roles, str) or len(plan.roles) != instances or set(plan.roles) - {ROLLOUT, JUDGE}:
        raise ConfigurationError(
            f"placement.mode: its policy names the roles {plan.roles!r:.80}; right would be {instances} letters, "
            f"{ROLLOUT} or {JUDGE}"
        )
    predicted = plan.prediction_s
    if predicted is not None and not (isinstance(predicted, int | float) and 0.0 <= predicted < math.inf):
        raise ConfigurationError(
            f"placement.mode: its policy predicts {predicted!r:.80}; right would be seconds of collect, or None"
        )
    if not isinstance(plan.reason, str) or not callable(getattr(plan.runtime_policy, "act", None)):
        raise ConfigurationError(
            "placement.mode: its policy's plan needs a reason in words, and a runtime policy that can act"
        )
    try:
        state = _as_recorded(plan.state)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"placement.mode: its policy remembers what cannot be recorded ({failure_text(error)}); right would be a dictionary "
            "of plain values"
        ) from None
    reason = plan.reason.encode("utf-8", "backslashreplace").decode()
    return Plan(plan.roles, plan.runtime_policy, predicted, reason, state)


def _as_recorded(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it comes back from the ledger, and nobody else's: what a policy does to it changes no other."""
    kept: dict[str, Any] = json.loads(json.dumps(dict(state), allow_nan=False))
    return kept


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
