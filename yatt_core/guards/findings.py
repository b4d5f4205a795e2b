"""What a guard found, and the resulting alarm: plain values with the evidence, as the ledger stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class MetricValue(NamedTuple):
    """A metric's value in one iteration."""

    iteration: int
    value: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a guard raises an alarm.

    text: description for human readers.
    first: earliest iteration involved.
    evidence: the window's values, the threshold and what it was derived from, as plain JSON values.
    """

    text: str
    first: int
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm with the finding of a guard.

    name: unique among the alarms of the iteration; if `lasting`, unique in the run.
    action: the guard's configured action.
    """

    rule: str
    name: str
    action: str
    finding: Finding
    lasting: bool = False

    def body(self, run: str, branch: int, iteration: int) -> dict[str, Any]:
        """Returns the alarm as the ledger stores it; the id is the same each time the alarm is raised."""
        place = "" if self.lasting else f"b{branch}/i{iteration}/"
        return {
            "id": f"{run}/{place}alarm/{self.name}",
            "rule": self.rule,
            "branch": branch,
            "iteration": iteration,
            "action": self.action,
            "text": self.finding.text,
            "first": self.finding.first,
            "evidence": dict(self.finding.evidence),
        }
