"""The control state: a small row in each commit, with all that a resumed run needs besides tensors and experience."""

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
    """The state after an iteration's commit.

    iteration: the last committed iteration; -1 before the first.
    cursor: the position after the prompts drawn so far.
    sampling_average: prompts per valid group, which determines the size of the next wave of dynamic sampling.
    fingerprint: the fingerprint of the iteration's update, which a replay must reproduce.
    environment: facts that the last bits of an update depend on.
    best: the highest held-out accuracy and its iteration.
    reward_moments: moments of all rewards so far.
    coefficients: adaptive coefficients of the objective by name; empty before the first update, and without any.
    placement: the placement policy's state.
    guards: for each guard that has raised an alarm, the iteration of the last one.
    """

    iteration: int
    cursor: Cursor
    sampling_average: float = FIRST_AVERAGE
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    reward_moments: RewardMoments = field(default_factory=RewardMoments)
    coefficients: Mapping[str, float] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def initial(cls, data: DataSpec) -> ControlState:
        """Returns the state before the first commit."""
        return cls(iteration=-1, cursor=Cursor.start(data))

    def to_json(self) -> dict[str, Any]:
        """Returns the state as the ledger keeps it."""
        return {
            "iteration": self.iteration,
            "cursor": self.cursor.to_json(),
            "sampling_average": self.sampling_average,
            "fingerprint": dict(self.fingerprint),
            "environment": dict(self.environment),
            "best": list(self.best) if self.best else None,
            "reward_moments": asdict(self.reward_moments),
            "coefficients": dict(self.coefficients),
            "placement": dict(self.placement),
            "guards": dict(self.guards),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ControlState:
        """Reads a state from the ledger."""
        best = state["best"]
        return cls(
            iteration=state["iteration"],
            cursor=Cursor.from_json(state["cursor"]),
            # A commit may lack the newer keys.
            sampling_average=float(state.get("sampling_average", FIRST_AVERAGE)),
            fingerprint=state["fingerprint"],
            environment=state["environment"],
            best=(best[0], best[1]) if best else None,
            reward_moments=RewardMoments(**state.get("reward_moments", {})),
            coefficients=state.get("coefficients", {}),
            placement=state.get("placement", {}),
            guards=state.get("guards", {}),
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """The recovered state, and the receipt of the recovery."""

    state: ControlState
    receipt: RecoverReceipt
