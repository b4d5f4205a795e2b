"""The control state: a small row in each commit, with all that a resumed run needs besides tensors and experience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from yatt_core.algorithms.moments import RewardMoments
from yatt_core.experience.dynamic_sampling import FIRST_AVERAGE
from yatt_core.experience.slicing import LearntLengths, StartedGroup
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import RecoverReceipt
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.data import DataSpec


@dataclass(frozen=True, slots=True)
class InFlight:
    """An iteration that is collected, but not learnt from yet.

    version: of the weights that it was sampled under.
    """

    iteration: int
    version: int


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
    sampled_under: the version of the weights that the iteration was sampled under; -1 if nothing was sampled.
    in_flight: the iterations that follow and are collected already, in order; none without `asynchrony.lag`.
    carried: the groups that are started and not learnt from, in the order of starting; none unless responses go on.
    learnt_lengths: of the responses that the run has learnt from so far, if responses go on.
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
    sampled_under: int = -1
    in_flight: tuple[InFlight, ...] = ()
    carried: tuple[StartedGroup, ...] = ()
    learnt_lengths: LearntLengths = field(default_factory=LearntLengths)

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
            "sampled_under": self.sampled_under,
            "in_flight": [asdict(entry) for entry in self.in_flight],
            "carried": [group.to_json() for group in self.carried],
            "learnt_lengths": asdict(self.learnt_lengths),
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
            # Before there was a lag, each iteration was sampled under the newest weights.
            sampled_under=state.get("sampled_under", state["iteration"] - 1),
            in_flight=tuple(InFlight(**entry) for entry in state.get("in_flight", ())),
            carried=tuple(StartedGroup.from_json(group) for group in state.get("carried", ())),
            learnt_lengths=LearntLengths(**state.get("learnt_lengths", {})),
        )

    def ahead(self, spec: RunSpec) -> int | None:
        """Returns the iteration that is collected while the next one is learnt from; None without a lag, and at the end."""
        number = self.iteration + 1 + spec.asynchrony.lag
        return number if spec.asynchrony.lag and number <= spec.iterations else None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The recovered state, and the receipt of the recovery."""

    state: ControlState
    receipt: RecoverReceipt
