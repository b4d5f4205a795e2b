"""The whole spec of a run, and what keeps it from being exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from yatt_core.digests import json_digest
from yatt_core.spec.base import SpecModel
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, VirtualJudge, is_trained, judge_obstacles
from yatt_core.spec.rewards.scheme import RewardSpec
from yatt_core.spec.sections.algorithm import AlgorithmSpec, CriticSpec, GrpoSpec, PpoSpec
from yatt_core.spec.sections.data import DataSpec
from yatt_core.spec.sections.dynamic_sampling import AllGroups, BestAndWorst, DynamicSamplingSpec
from yatt_core.spec.sections.guards import GuardsSpec
from yatt_core.spec.sections.model import ModelFromConfig, ModelSizes, ModelSpec, SftSpec
from yatt_core.spec.sections.placement import PlacementSpec
from yatt_core.spec.sections.recovery import RecoverySpec, RetentionSpec
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.spec.sections.storage import StorageSpec
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.spec.sections.trainer import TrainerSpec


class ControllerSpec(SpecModel):
    """The parallel controllers; their number never changes a result."""

    count: int = Field(default=2, ge=1, le=4096)
    """Controllers, one process each."""
    per: Literal["run", "node"] = "run"
    """`run`: so many in all. `node`: so many on each living node; nodes that join or leave count from the next iteration."""
    bytes_in_flight: PositiveInt = 256 << 20
    """Most bytes of requests and expected answers that a controller has under way; a decode batch above it goes alone."""


class CheckpointSpec(SpecModel):
    """When checkpoints are taken and how many are kept."""

    every: PositiveInt = 20
    """Iterations between two checkpoints; a graceful stop and the end of the run take one too."""
    keep: PositiveInt = 2
    """Newest checkpoints to keep, besides the one of iteration 0."""


class EvaluationSpec(SpecModel):
    """Greedy accuracy on the held-out tasks; the first and the last iteration are always evaluated."""

    every: NonNegativeInt = 20
    """Iterations between two evaluations; 0: only the first and the last."""


class TrackingSpec(SpecModel):
    """MLflow."""

    experiment: str = "yatt"
    """Name of the MLflow experiment that the run is in."""
    enabled: bool = True
    """False: metrics stay in the ledger alone."""


class RunSpec(SpecModel):
    """One run: immutable, identified by `digest`; a change is a new revision."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Name that a person reads; runs of the same spec get a number behind it."""
    seed: NonNegativeInt = 0
    """Of all that is drawn: prompts, initial weights, responses."""
    exact: bool = True
    """A run killed anywhere ends bit for bit as an undisturbed one; needs float32."""
    iterations: PositiveInt = 100
    """RLHF steps of the whole run."""
    model: ModelSpec = ModelFromConfig()
    sft: SftSpec | None = None
    """`null`: the first iteration starts from the model as it is."""
    data: DataSpec
    rollout: RolloutSpec = RolloutSpec()
    dynamic_sampling: DynamicSamplingSpec = AllGroups()
    rewards: RewardSpec
    algorithm: AlgorithmSpec = GrpoSpec()
    trainer: TrainerSpec = TrainerSpec()
    controllers: ControllerSpec = ControllerSpec()
    placement: PlacementSpec = PlacementSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    recovery: RecoverySpec = RecoverySpec()
    guards: GuardsSpec = GuardsSpec()
    retention: RetentionSpec = RetentionSpec()
    storage: StorageSpec = StorageSpec()
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
    def samples_dynamically(self) -> bool:
        """True where not every sampled group is learnt from."""
        return self.dynamic_sampling != AllGroups()

    @property
    def accuracy_part(self) -> str:
        """Name of the reward part that tells right from wrong."""
        return self.rewards.accuracy_name

    @property
    def devices(self) -> int:
        """Devices that the run asks for: rollout and training share them."""
        return max(self.rollout.engine.instances, self.trainer.engine.ranks)

    @property
    def critic(self) -> CriticSpec | None:
        """The critic; None for an algorithm without one."""
        return self.algorithm.critic if isinstance(self.algorithm, PpoSpec) else None

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
        if (cache := getattr(self.rollout.engine, "kv_cache_dtype", "auto")) != "auto":
            obstacles.append(f"rollout.engine.kv_cache_dtype is {cache}, exact needs auto")
        if self.dynamic_sampling.overdispatch is not None:
            obstacles.append("dynamic_sampling.overdispatch cuts by arrival, exact needs every response")
        for tool in self.rollout.tools.functions if self.rollout.tools else ():
            if not tool.deterministic:
                obstacles.append(f"the tool {tool.name!r} is not deterministic")
        for judge in self.rewards.judges:
            obstacles += judge_obstacles(judge)
        return obstacles

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if mistakes := list(self._contradictions()):
            raise ValueError("\n".join(mistakes))
        return self

    def _contradictions(self) -> Iterator[str]:
        """What cannot be true at once, a line each that begins with the key to change."""
        yield from self._reward_mistakes()
        yield from self._placement_mistakes()
        yield from self.guards.mistakes()
        if self.virtual != (self.trainer.engine.kind == "virtual"):
            kinds = f"{self.rollout.engine.kind} and {self.trainer.engine.kind}"
            yield f"rollout.engine and trainer.engine: both virtual or both real, not {kinds}"
        if self.virtual and self.trainer.lora is not None:
            yield "trainer.lora: a virtual trainer has no matrices for adapters; write null"
        if self.trainer.lora is not None and self.trainer.engine.kind == "megatron":
            yield "trainer.lora: Megatron-Core trains all weights here; write null, or train on fsdp2 or torch"
        yield from self._second_model_mistakes()
        if self.exact and (obstacles := self.exact_obstacles()):
            yield f"exact: set it to false, because {'; '.join(obstacles)}"
        if self.sft is not None and not self.data.probe:
            yield "data.probe: supervised fine-tuning stops by the accuracy on probe tasks, so it needs some; write 1 or more"
        if self.algorithm.mini_batches > self.data.prompts_per_iteration:
            yield (
                f"algorithm.mini_batches: {self.algorithm.mini_batches} is more than "
                f"data.prompts_per_iteration {self.data.prompts_per_iteration}"
            )
        if self.rollout.samples_per_prompt < 2 and self.critic is None:
            yield "rollout.samples_per_prompt: grpo compares the answers to a prompt, so at least 2 are needed"
        if self.rollout.tools is not None:
            yield from self._tool_mistakes(self.rollout.tools)
        yield from self._unfit_sampling()
        if self.data.has_images and getattr(self.trainer.engine, "packed", False):
            yield "trainer.engine.packed: prompts with images cannot be packed; write false"
        if not self.virtual and isinstance(self.model, ModelFromConfig | ModelSizes):
            yield from self._too_long(self.model.max_positions)
            if self.data.has_images and isinstance(self.model, ModelFromConfig):
                yield from self._unseen_images(self.model)

    def _reward_mistakes(self) -> Iterator[str]:
        rewards = self.rewards
        names, functions = [part.name for part in rewards.parts], [part.name for part in rewards.functions]
        if len(set(names)) < len(names):
            yield f"rewards.parts: two parts have the same name in {names}"
        if not functions:
            yield (
                "rewards.parts: a part of kind function has to tell right from wrong, as a judge is no measure of what it "
                "rewards itself; add one, with weight 0 if it is not to count"
            )
        elif self.accuracy_part not in names:
            yield f"rewards.accuracy_part: {self.accuracy_part!r} is none of the parts {names}"
        elif self.accuracy_part not in functions:
            yield f"rewards.accuracy_part: {self.accuracy_part!r} is a judge; right would be one of the functions {functions}"
        if not self.data.probe and any(is_trained(judge) for judge in rewards.judges):
            yield "data.probe: a trained judge stops by its accuracy on probe tasks, so it needs some; write 1 or more"

    def _placement_mistakes(self) -> Iterator[str]:
        placement, engine = self.placement, self.rollout.engine
        shares = any(not isinstance(judge, EndpointPart) for judge in self.rewards.judges)
        if placement.mode != "colocate" and not shares:
            yield (
                f"placement.mode: {placement.mode} shares the devices between rollout and judges, and no part of rewards.parts "
                "has a judge on them; write colocate"
            )
        if (placement.mode == "split") != (placement.judges is not None):
            yield "placement.judges: how many instances judge belongs to placement.mode split, and has to be said there"
        elif placement.judges is not None and 0 < engine.instances <= placement.judges:
            yield (
                f"placement.judges: {placement.judges} of {engine.instances} instances leave none to roll out; right would be "
                f"at most {engine.instances - 1}, or more rollout.engine.instances"
            )
        if self.virtual and engine.continuous:
            for judge in self.rewards.judges:
                virtual = isinstance(judge, GenerativePart) and isinstance(judge.engine, VirtualJudge)
                if not virtual and not isinstance(judge, EndpointPart):
                    yield f"rewards.parts {judge.name!r}: beside virtual engines that batch continuously a judge is virtual too"

    def _second_model_mistakes(self) -> Iterator[str]:
        """Of a teacher or a critic beside the policy."""
        seconds = []
        if self.algorithm.distillation is not None:
            seconds.append(("algorithm.distillation", "a teacher", "null"))
        if self.critic is not None:
            seconds.append(("algorithm.kind", "a critic", "grpo"))
        for key, who, without in seconds:
            if self.virtual:
                yield f"{key}: a virtual trainer has no model, and {who} nothing to work beside; write {without}"
            if self.trainer.engine.kind == "megatron":
                yield (
                    f"{key}: Megatron-Core holds no second model here, and {who} is one; write {without}, or train on fsdp2 or "
                    "torch"
                )
            if self.data.has_images:
                yield f"{key}: {who} reads prompts of text alone; write {without}, or leave image_field out"

    def _unfit_sampling(self) -> Iterator[str]:
        sampling, samples = self.dynamic_sampling, self.rollout.samples_per_prompt
        if isinstance(sampling, BestAndWorst) and 2 * sampling.keep > samples:
            yield (
                f"dynamic_sampling.keep: {sampling.keep} best and {sampling.keep} worst samples are more than "
                f"rollout.samples_per_prompt {samples}; right would be at most {samples // 2}"
            )
        if sampling.overdispatch is not None:
            wanted = self.data.prompts_per_iteration
            sent = math.ceil(wanted * sampling.overdispatch.factor)
            largest = math.ceil(sent / min(self.data.logical_shards, sent))
            if sent - largest < wanted:
                yield (
                    f"dynamic_sampling.overdispatch.factor: of {sent} prompts in shards of up to {largest} none could be "
                    f"cut without falling below data.prompts_per_iteration {wanted}; raise it, or data.logical_shards"
                )

    def _tool_mistakes(self, tools: ToolsSpec) -> Iterator[str]:
        names = [tool.name for tool in tools.functions]
        if len(set(names)) < len(names):
            yield f"rollout.tools.functions: two tools have the same name in {names}"

    def _unseen_images(self, model: ModelFromConfig) -> Iterator[str]:
        if model.vision is None:
            yield "model.vision: a source of data.sources has an image_field, so the model needs a vision tower"
            return
        data, response = self.data, self.rollout.max_response_tokens
        room = min(data.max_prompt_tokens, model.max_positions - response)
        if 0 < room <= model.vision.patches:
            yield (
                f"model.vision.image_size: an image of {model.vision.image_size} pixels takes {model.vision.patches} tokens, "
                f"and a prompt has room for {room}, its text included (data.max_prompt_tokens {data.max_prompt_tokens}; "
                f"model.max_positions {model.max_positions} less {response} of the response); make it smaller, or the patches "
                "larger"
            )

    def _too_long(self, positions: int) -> Iterator[str]:
        rollout = self.rollout
        if rollout.max_response_tokens >= positions:
            results = (
                ""
                if rollout.tools is None
                else f" with {rollout.max_response_tokens - rollout.max_new_tokens} of tools"
            )
            yield (
                f"rollout.max_new_tokens: {rollout.max_new_tokens}{results} leaves no room for a prompt in "
                f"model.max_positions {positions}"
            )
