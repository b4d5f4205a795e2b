"""What a guard found, and the alarm that is made of it: plain values with the evidence, as the ledger keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """A value of a metric, and the iteration it is of."""

    iteration: int
    value: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a guard raises an alarm. text: in words. first: the earliest iteration that has a part in it. evidence: values of the
    window, threshold, and what it was made of, as plain JSON values.
    """

    text: str
    first: int
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A guard's finding. name: tells it from other alarms of the iteration; of the run, where it is lasting. action: what is to
    be done.
    """

    rule: str
    name: str
    action: str
    finding: Finding
    lasting: bool = False

    def body(self, run: str, branch: int, iteration: int) -> dict[str, Any]:
        """What the ledger keeps; the id is the same whenever the alarm is raised again."""
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
