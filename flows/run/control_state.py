"""The control state: the small row that each commit carries, and all that a resumed run needs besides tensors and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from yatt_core.algorithms.moments import RewardMoments
from yatt_core.experience.dynamic_sampling import FIRST_AVERAGE
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import RecoverReceipt
from yatt_core.spec.sections.data import DataSpec


@dataclass(frozen=True, slots=True)
class ControlState:
    """State after an iteration's commit. iteration: the last committed one, -1 before the first.

    sampling_average: prompts per valid group, by which dynamic sampling draws its next wave.
    fingerprint: of the iteration's update, which a replay has to reproduce. best: the highest held-out accuracy and its
    iteration. environment: what the update's last bits depend on. reward_moments: of all rewards so far. placement: what the
    placement policy remembers. guards: the iteration of the last alarm of each guard that has raised one.
    """

    iteration: int
    cursor: Cursor
    sampling_average: float = FIRST_AVERAGE
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    reward_moments: RewardMoments = field(default_factory=RewardMoments)
    placement: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def initial(cls, data: DataSpec) -> ControlState:
        """Before anything was done."""
        return cls(iteration=-1, cursor=Cursor.start(data))

    def to_json(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        return {
            "iteration": self.iteration,
            "cursor": self.cursor.to_json(),
            "sampling_average": self.sampling_average,
            "fingerprint": dict(self.fingerprint),
            "environment": dict(self.environment),
            "best": list(self.best) if self.best else None,
            "reward_moments": asdict(self.reward_moments),
            "placement": dict(self.placement),
            "guards": dict(self.guards),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ControlState:
        """From the ledger."""
        best = state["best"]
        return cls(
            iteration=state["iteration"],
            cursor=Cursor.from_json(state["cursor"]),
            # Commits from before there were sampling averages, moments, placements and guards have none of them.
            sampling_average=float(state.get("sampling_average", FIRST_AVERAGE)),
            fingerprint=state["fingerprint"],
            environment=state["environment"],
            best=(best[0], best[1]) if best else None,
            reward_moments=RewardMoments(**state.get("reward_moments", {})),
            placement=state.get("placement", {}),
            guards=state.get("guards", {}),
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that a recovery came to, and what it took."""

    state: ControlState
    receipt: RecoverReceipt
