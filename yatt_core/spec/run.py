"""The whole spec of a run, and what keeps it from being exact."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from yatt_core.digests import json_digest
from yatt_core.spec.algorithm import AlgorithmSpec, GrpoSpec
from yatt_core.spec.base import SpecModel
from yatt_core.spec.data import DataSpec
from yatt_core.spec.model import ModelFromConfig, ModelSpec, WarmupSpec
from yatt_core.spec.rewards import RewardSpec
from yatt_core.spec.rollout import RolloutSpec
from yatt_core.spec.trainer import TrainerSpec


class ControllerSpec(SpecModel):
    """The parallel controllers; their number never changes a result."""

    count: PositiveInt = 2


class PlacementSpec(SpecModel):
    """Which role sits on which device."""

    mode: Literal["colocate"] = "colocate"
    """`colocate`: every phase has all devices, roles take turns."""


class SnapshotSpec(SpecModel):
    """When snapshots are taken and how many are kept."""

    every: PositiveInt = 20
    """Iterations between two snapshots; a graceful stop and the end of the run take one too."""
    keep: PositiveInt = 2
    """Newest snapshots to keep, besides the one of iteration 0."""


class EvaluationSpec(SpecModel):
    """Greedy accuracy on the held-out tasks; the first and the last iteration are always evaluated."""

    every: NonNegativeInt = 20
    """Iterations between two evaluations; 0: only the first and the last."""


class BudgetSpec(SpecModel):
    """Attempts that a phase may use up, by class of failure; charged when it is dispatched."""

    infrastructure: PositiveInt = 3
    data: PositiveInt = 1
    numeric: PositiveInt = 1


class RecoverySpec(SpecModel):
    """How failures are noticed and answered."""

    phase_deadline_seconds: PositiveFloat = 600.0
    """A phase that takes longer has failed."""
    lease_seconds: PositiveFloat = 10.0
    """Life of the lease; renewed five times as often."""
    grace_seconds: PositiveFloat = 120.0
    """How long the run's cluster waits for a new driver after the last one went away."""
    budgets: BudgetSpec = BudgetSpec()


class TrackingSpec(SpecModel):
    """MLflow."""

    experiment: str = "yatt"
    enabled: bool = True


class RunSpec(SpecModel):
    """One run: immutable, identified by `digest`; a change is a new revision."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Name that a person reads; runs of the same spec get a number behind it."""
    seed: NonNegativeInt = 0
    exact: bool = True
    """A run killed anywhere ends bit for bit as an undisturbed one; needs float32."""
    iterations: PositiveInt = 100
    model: ModelSpec = ModelFromConfig()
    warmup: WarmupSpec | None = None
    data: DataSpec
    rollout: RolloutSpec = RolloutSpec()
    rewards: RewardSpec
    algorithm: AlgorithmSpec = GrpoSpec()
    trainer: TrainerSpec = TrainerSpec()
    controllers: ControllerSpec = ControllerSpec()
    placement: PlacementSpec = PlacementSpec()
    snapshots: SnapshotSpec = SnapshotSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    recovery: RecoverySpec = RecoverySpec()
    tracking: TrackingSpec = TrackingSpec()

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the whole spec, defaults included."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def shards(self) -> int:
        """Logical shards of an iteration: never more than it has prompts."""
        return min(self.data.logical_shards, self.data.prompts_per_iteration)

    @property
    def virtual(self) -> bool:
        """True for a run without a real model."""
        return self.rollout.engine.kind == "virtual"

    @property
    def accuracy_part(self) -> str:
        """Name of the reward part that tells right from wrong."""
        return self.rewards.accuracy_part or self.rewards.parts[0].name

    @property
    def optimizer_steps_per_iteration(self) -> int:
        """Optimizer steps against the same experience."""
        return self.algorithm.epochs * self.algorithm.mini_batches

    def exact_obstacles(self) -> list[str]:
        """Why this spec cannot be exact, in words; empty when it can."""
        obstacles = []
        for place, engine in (("rollout", self.rollout.engine), ("trainer", self.trainer.engine)):
            if getattr(engine, "dtype", "float32") != "float32":
                obstacles.append(f"{place}.engine.dtype is {getattr(engine, 'dtype', '')}, exact needs float32")
        return obstacles

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        names = [part.name for part in self.rewards.parts]
        if len(set(names)) < len(names):
            raise ValueError(f"rewards.parts: two parts have the same name in {names}")
        if self.accuracy_part not in names:
            raise ValueError(f"rewards.accuracy_part: {self.accuracy_part!r} is none of the parts {names}")
        if self.virtual != (self.trainer.engine.kind == "virtual"):
            raise ValueError("rollout.engine and trainer.engine: both virtual or both real")
        if self.exact and (obstacles := self.exact_obstacles()):
            raise ValueError(f"exact: set it to false, because {'; '.join(obstacles)}")
        if self.algorithm.mini_batches > self.data.prompts_per_iteration:
            raise ValueError("algorithm.mini_batches: more than data.prompts_per_iteration")
        return self
