"""The complete spec of a run, its consistency checks, and what prevents it from being exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from yatt_core.algorithms.shaping.overlong import OverlongPenalty
from yatt_core.digests import json_digest
from yatt_core.spec.alignment import aligned_obstacles
from yatt_core.spec.base import SpecModel
from yatt_core.spec.combinations import checks_on_reading, is_excluded
from yatt_core.spec.features import OVERDISPATCH, SLICES, TAIL
from yatt_core.spec.objective import ObjectiveSpec, learns_from_rows
from yatt_core.spec.rewards.judges import (
    EndpointPart,
    GenerativePart,
    judge_obstacles,
    judge_obstacles_on_processors,
)
from yatt_core.spec.rewards.scheme import RewardSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.algorithm import AlgorithmSpec, CriticSpec
from yatt_core.spec.sections.asynchrony import AsynchronySpec
from yatt_core.spec.sections.billing import BillingSpec
from yatt_core.spec.sections.callbacks import CallbackSpec
from yatt_core.spec.sections.controllers import ControllerSpec
from yatt_core.spec.sections.data import DataSpec
from yatt_core.spec.sections.dynamic_sampling import AllGroups, DynamicSamplingSpec, misfits
from yatt_core.spec.sections.evaluation import EvaluationSpec
from yatt_core.spec.sections.gates import GatesSpec
from yatt_core.spec.sections.guards import GuardsSpec
from yatt_core.spec.sections.model import ModelFromConfig, ModelSizes, ModelSpec, SftSpec
from yatt_core.spec.sections.placement import PlacementSpec
from yatt_core.spec.sections.recovery import CheckpointSpec, RecoverySpec, RetentionSpec
from yatt_core.spec.sections.rollout import RolloutSpec, TailSpec, TorchRollout, no_room
from yatt_core.spec.sections.storage import StorageSpec
from yatt_core.spec.sections.tracking import TrackingSpec
from yatt_core.spec.sections.trainer import TrainerSpec
from yatt_core.spec.sections.workload import WorkloadSpec
from yatt_core.workload_kinds import ROWS, WorkloadParts, parts_of_kind


class RunSpec(SpecModel):
    """One run. It is immutable and identified by `digest`; a change makes a new revision."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Human-readable name; a number is appended for each run of the same spec."""
    seed: NonNegativeInt = 0
    """Seed of all randomness: prompts, initial weights, responses."""
    exact: Literal["auto", True, False, "aligned"] = "auto"
    """A run killed at any point ends bit-identical to an undisturbed one. `auto`: where every part of the spec and each
    device repeats its bits; `yatt check` says which part does not. `true`: what does not is refused. `aligned`: as `true`,
    and the trainer computes the sampler's log-probabilities to the last bit; an update in which one differs is not made."""
    iterations: PositiveInt = 100
    """RLHF iterations of the whole run."""
    workload: WorkloadSpec = WorkloadSpec()
    model: ModelSpec = ModelFromConfig()
    sft: SftSpec | None = None
    """Supervised fine-tuning before the first iteration. `null`: the first iteration starts from the model
    unchanged."""
    data: DataSpec = DataSpec()
    rollout: RolloutSpec = RolloutSpec()
    dynamic_sampling: DynamicSamplingSpec = AllGroups()
    rewards: RewardSpec = RewardSpec()
    algorithm: AlgorithmSpec = AlgorithmSpec()
    objective: ObjectiveSpec | None = None
    """What the run learns from its data, without rewards; `null`: reinforcement learning by `algorithm`."""
    trainer: TrainerSpec = TrainerSpec()
    controllers: ControllerSpec = ControllerSpec()
    asynchrony: AsynchronySpec = AsynchronySpec()
    placement: PlacementSpec = PlacementSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    recovery: RecoverySpec = RecoverySpec()
    guards: GuardsSpec = GuardsSpec()
    gates: GatesSpec = GatesSpec()
    retention: RetentionSpec = RetentionSpec()
    storage: StorageSpec = StorageSpec()
    tracking: TrackingSpec = TrackingSpec()
    callbacks: tuple[CallbackSpec, ...] = ()
    """Observers of your own, which are told of commits and cannot change a result."""
    billing: BillingSpec = BillingSpec()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the whole spec, defaults included."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def shards(self) -> int:
        """Number of logical shards of an iteration, at most its number of prompts."""
        return min(self.data.logical_shards, self.data.prompts_per_iteration)

    @property
    def tail(self) -> TailSpec | None:
        """Where an iteration ends before its longest responses; None if it waits for them, or draws slices of a fixed length.

        Over-dispatch is the same, as far as the rest of the spec goes with it.
        """
        earlier = self.dynamic_sampling.overdispatch
        if self.rollout.tail is not None or earlier is None or is_excluded(OVERDISPATCH, self):
            return self.rollout.tail
        return TailSpec(factor=earlier.factor)

    @property
    def sliced(self) -> bool:
        """True if responses may go on in a later iteration: with slices of a fixed length, or with a tail."""
        return bool(self.sliced_by)

    @property
    def sliced_by(self) -> str:
        """The key by which responses may go on in a later iteration; empty if every response is drawn whole."""
        if self.rollout.slice_tokens is not None:
            return SLICES.key
        if self.tail is None:
            return ""
        return OVERDISPATCH.key if self.rollout.tail is None else TAIL.key

    @property
    def drawing_iterations(self) -> int:
        """Number of iterations in which a response may be drawn; 1 if none goes on."""
        tail = self.tail
        if tail is not None:
            return tail.max_iterations
        return 1 if self.rollout.slice_tokens is None else self.rollout.max_slices

    @property
    def groups_in_flight(self) -> int:
        """Number of groups that are started and not learnt from while a run whose responses go on draws."""
        tail = self.tail
        if tail is not None:
            # Rounded first: 10 x 1.1 is a little more than 11 in floating point.
            return math.ceil(round(self.data.prompts_per_iteration * tail.factor, 6))
        return self.rollout.in_flight or 2 * self.data.prompts_per_iteration

    @property
    def carry_span(self) -> int:
        """Iterations between the first token of a response and the one that learns from it, at most, without a lag.

        0 if no response goes on. It is drawn in at most `drawing_iterations`. Once complete, its group has at most
        `groups_in_flight` - 1 groups before it, of which each iteration learns from `data.prompts_per_iteration`.
        """
        if not self.sliced:
            return 0
        return self.drawing_iterations - 1 + (self.groups_in_flight - 1) // self.data.prompts_per_iteration

    @property
    def version_span(self) -> int:
        """Versions by which the oldest weights that an update's experience was drawn under precede its own, at most."""
        return self.asynchrony.lag + self.carry_span

    @property
    def virtual(self) -> bool:
        """True for a run without a real model."""
        return self.rollout.engine.kind == "virtual"

    @property
    def samples_dynamically(self) -> bool:
        """True if the update does not learn from every sampled group that has scores."""
        sampling = self.dynamic_sampling
        overdrawn = sampling.overdispatch is not None and self.tail is None
        return not isinstance(sampling, AllGroups) or overdrawn or sampling.deadline is not None

    @property
    def is_exact(self) -> bool:
        """Whether the run is exact as far as its spec tells; a device that does not repeat its bits is found at the start."""
        if self.exact != "auto":
            return self.must_be_exact
        return not self.exact_obstacles() and not self.obstacles_on_processors()

    @property
    def must_be_exact(self) -> bool:
        """Whether what cannot be exact is refused."""
        return self.exact is True or self.aligned

    @property
    def aligned(self) -> bool:
        """Whether trainer and sampler must compute the same log-probabilities, to the last bit."""
        return self.exact == "aligned"

    @property
    def accuracy_part(self) -> str:
        """Name of the reward part that decides whether a response is correct."""
        return self.rewards.accuracy_name

    @property
    def devices(self) -> int:
        """Number of devices that the run needs; rollout and training share them, unless they are split."""
        rollout = self.engine_instances * self.devices_per_instance
        return max(rollout, self.trainer.engine.ranks - self.devices_before_engines) + self.devices_before_engines

    @property
    def devices_before_engines(self) -> int:
        """Number of devices of the trainer's ranks that no rollout instance has."""
        apart = self.splits_samplers or self.placement.trainer == "apart"
        return self.trainer.engine.ranks if apart else 0

    @property
    def lent_instances(self) -> tuple[int, ...]:
        """The rollout instances on the trainer's devices that generate only while it does not learn."""
        return tuple(range(self.trainer.engine.ranks)) if self.placement.trainer == "lent" else ()

    @property
    def splits_samplers(self) -> bool:
        """True if samplers have devices of their own, apart from those of the trainer's ranks."""
        return self.has.samplers and self.placement.mode == "split"

    @property
    def engine_instances(self) -> int:
        """Number of rollout instances, which sample; 0 if the run has none."""
        return self.rollout.engine.instances if self.has.sync else 0

    @property
    def devices_per_instance(self) -> int:
        """Number of devices of a rollout instance: those of the largest of its engines, the policy's or a judge's."""
        engines: list[object] = [self.rollout.engine]
        engines += [part.engine for part in self.rewards.judges if isinstance(part, GenerativePart)]
        return max((engine.devices for engine in engines if isinstance(engine, VllmRollout)), default=1)

    @property
    def critic(self) -> CriticSpec | None:
        """The critic; None if the algorithm has none."""
        return self.algorithm.critic

    @property
    def has(self) -> WorkloadParts:
        """What the run has by its workload."""
        from_rows = self.objective is not None and learns_from_rows(self.objective)
        return parts_of_kind(self.workload.kind, from_rows, self.workload.sampled_by)

    @property
    def samples_responses(self) -> bool:
        """True if a policy samples responses and learns from them; False if rows of data or an own workload are learnt from."""
        return self.has.controllers

    @property
    def trains_reward_model(self) -> bool:
        """True if the run trains a scalar head instead of a policy."""
        return self.objective is not None and self.objective.kind == "reward_model"

    @property
    def keeps_reference(self) -> bool:
        """True if the trainer keeps weights of before an iteration: the KL penalty's reference, or the policy's own teacher."""
        kept = self.algorithm.kl is not None or self.algorithm.keeps_teacher
        return kept or (self.objective is not None and self.objective.kind in ("dpo", "kto"))

    @property
    def scores_reference(self) -> bool:
        """True if the loss or the reward reads log-probabilities under the reference."""
        return self.keeps_reference and (self.objective is not None or self.algorithm.kl is not None)

    @property
    def trainer_temperature(self) -> float:
        """The temperature of the trainer's log-probabilities: that of sampling, or 1 if nothing is sampled."""
        return self.rollout.temperature if self.samples_responses else 1.0

    @property
    def epochs(self) -> int:
        """Number of passes over what an iteration learns from."""
        return self.algorithm.epochs if self.objective is None else 1

    @property
    def mini_batches(self) -> int:
        """Number of optimizer steps of a pass."""
        return self.algorithm.mini_batches if self.objective is None else self.objective.mini_batches

    @property
    def optimizer_steps_per_iteration(self) -> int:
        """Number of optimizer steps on the experience of one iteration."""
        return self.epochs * self.mini_batches

    @property
    def may_mask(self) -> bool:
        """Whether a sample may end up without a score: a reward part or a tool may get no answer."""
        return self.rewards.may_mask or self.rollout.tools is not None

    @property
    def advantages_of_tokens(self) -> bool:
        """Whether each token has an advantage of its own."""
        return self.algorithm.advantage.by_token or self.rewards.critique is not None

    @property
    def needs_old(self) -> bool:
        """Whether an update reads the log-probabilities before its first step."""
        return self.optimizer_steps_per_iteration > 1 or self.algorithm.needs_old

    @property
    def replays_support(self) -> bool:
        """Whether the trainer normalises probabilities over the tokens that the sampler had left."""
        return self.algorithm.sampler_support == "replay"

    def longest_context(self, positions: int | None) -> int:
        """Returns the maximum number of tokens that precede a response, a later turn or slice of it, in the model's input.

        positions: of the model; None if it does not limit them.
        """
        rollout = self.rollout
        prompt = self.data.max_prompt_tokens
        if self.sliced:  # at its last token, all but one of a response's tokens precede it
            context = prompt + rollout.max_response_tokens - 1
            return context if positions is None else max(1, min(context, positions - 1))
        context = prompt + (0 if rollout.tools is None else rollout.max_response_tokens)
        return context if positions is None else max(1, min(context, positions - rollout.max_new_tokens))

    def longest_sequence(self, positions: int | None) -> int:
        """Returns the maximum number of tokens of a sequence of the rollout engine, including what precedes a response.

        positions: as for `longest_context`.
        """
        longest = self.longest_context(positions) + (1 if self.sliced else self.rollout.max_new_tokens)
        return longest if positions is None else min(longest, positions)

    def exact_obstacles(self) -> list[str]:
        """Returns the reasons why this spec cannot be exact on any device; empty if it can on some."""
        obstacles = []
        engine = self.rollout.engine
        if (
            self.samples_responses
            and isinstance(engine, TorchRollout)
            and engine.continuous
            and engine.dtype != "float32"
        ):
            # What is batched by chance must not change an answer. Planned batches are decoded again as they were.
            obstacles.append(
                f"rollout.engine.dtype is {engine.dtype}, but with continuous batching exact needs float32: in "
                f"{engine.dtype} an answer alone already differs from itself in a crowd (kind: torch without continuous decodes "
                "planned batches, in either)"
            )
        for key, finish in (("dynamic_sampling", self.dynamic_sampling), ("evaluation", self.evaluation)):
            if finish.deadline is not None:
                obstacles.append(
                    f"{key}.deadline leaves out what is not finished by the clock, but exact needs everything"
                )
        for tool in self.rollout.tools.functions if self.rollout.tools else ():
            if not tool.deterministic:
                obstacles.append(f"the tool {tool.name!r} is not deterministic")
        for judge in self.rewards.judges:
            obstacles += judge_obstacles(judge)
        return obstacles

    def obstacles_on_processors(self) -> list[str]:
        """Returns the reasons why this spec cannot be exact if its engines compute on processors; empty if it can.

        What is batched by chance must not change an answer. Planned batches are decoded again as they were, and on GPUs vLLM has
        a mode for it, which `exact: true` switches on.
        """
        engine = self.rollout.engine
        obstacles = [said for judge in self.rewards.judges for said in judge_obstacles_on_processors(judge)]
        if not self.samples_responses or not isinstance(engine, VllmRollout):
            return obstacles
        if engine.dtype != "float32":
            obstacles.append(
                f"rollout.engine.dtype is {engine.dtype}, but with continuous batching on processors exact needs float32: in "
                f"{engine.dtype} an answer alone differs from itself in a crowd on some processors (kind: torch decodes planned "
                "batches, in either)"
            )
        if engine.kv_cache_dtype != "auto":
            obstacles.append(
                f"rollout.engine.kv_cache_dtype is {engine.kv_cache_dtype}, but on processors exact needs auto"
            )
        return obstacles

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if mistakes := [mistake for check in self.checks() for mistake in check()]:
            raise ValueError("\n".join(mistakes))
        return self

    def checks(self) -> tuple[Callable[[], Iterator[str]], ...]:
        """Returns the checks across sections, each of which yields one line per contradiction, starting with the key.

        They are separate so that those that do not read a wrong key can report their contradictions beside it.
        """
        return (
            self._source_mistakes,
            self._kind_mistakes,
            self._reward_mistakes,
            lambda: self.algorithm.support_mistakes(self.rollout),
            self._placement_mistakes,
            lambda: self.guards.mistakes(self.has.own_metrics),
            *checks_on_reading(self),
            self._teacher_mistakes,
            self._inexact,
            self._sft_mistakes,
            self._batch_mistakes,
            self._slice_mistakes,
            self._group_mistakes,
            self._length_mistakes,
            self._tool_mistakes,
            self._unfit_sampling,
            self._evaluation_mistakes,
            self._position_mistakes,
        )

    def _source_mistakes(self) -> Iterator[str]:
        if self.workload.is_language and not self.data.sources:
            yield "data.sources: expected at least 1 item"

    def _kind_mistakes(self) -> Iterator[str]:
        if self.workload.kind == ROWS and self.has.learns_from != "rows":
            yield (
                "workload.kind: rows learns from the rows of the data by an objective; write objective, with pairs: data if it "
                "compares responses, or use language"
            )

    def _inexact(self) -> Iterator[str]:
        if self.must_be_exact and (obstacles := self.exact_obstacles()):
            yield f"exact: must be false or auto, because {'; '.join(obstacles)}"
        if self.aligned and (obstacles := aligned_obstacles(self)):
            yield f"exact: aligned cannot hold, because {'; '.join(obstacles)}; or use true, auto or false"

    def _sft_mistakes(self) -> Iterator[str]:
        if self.sft is not None and self.data.probe == 0:
            yield "data.probe: supervised fine-tuning stops by its accuracy on probe tasks; expected 1 or more"

    def _batch_mistakes(self) -> Iterator[str]:
        if self.mini_batches > self.data.prompts_per_iteration:
            yield (
                f"{'algorithm' if self.objective is None else 'objective'}.mini_batches: {self.mini_batches} is more than "
                f"data.prompts_per_iteration {self.data.prompts_per_iteration}"
            )

    def _slice_mistakes(self) -> Iterator[str]:
        if self.rollout.slice_tokens is not None and self.groups_in_flight < self.data.prompts_per_iteration:
            yield (
                f"rollout.in_flight: {self.groups_in_flight} prompts in flight never complete the "
                f"{self.data.prompts_per_iteration} of data.prompts_per_iteration; expected at least as many"
            )

    def _group_mistakes(self) -> Iterator[str]:
        advantage = self.algorithm.advantage
        compares = advantage.compares and not self._learns_from_a_teacher_only
        if self.rollout.samples_per_prompt < 2 and self.samples_responses and compares:
            kind = (
                f"the advantage {advantage.kind}" if self.objective is None else f"the objective {self.objective.kind}"
            )
            yield f"rollout.samples_per_prompt: {kind} compares the responses to a prompt; expected 2 or more"

    def _length_mistakes(self) -> Iterator[str]:
        penalty = self.algorithm.length_penalty
        longest = self.rollout.max_new_tokens
        if isinstance(penalty, OverlongPenalty) and (buffer := penalty.buffer_of(longest)) >= longest:
            yield (
                f"algorithm.length_penalty.buffer: {buffer} is not less than rollout.max_new_tokens {longest}, so "
                "that every response would be penalised"
            )

    def _position_mistakes(self) -> Iterator[str]:
        if not self.virtual and isinstance(self.model, ModelFromConfig | ModelSizes):
            yield from self._too_long(self.model.max_positions)
            if self.data.has_images and isinstance(self.model, ModelFromConfig):
                yield from self._unseen_images(self.model)

    @property
    def _learns_from_a_teacher_only(self) -> bool:
        """True if rewards have no weight, so that a single response to a prompt teaches something."""
        return self.algorithm.distillation is not None and not any(part.weight for part in self.rewards.parts)

    def _reward_mistakes(self) -> Iterator[str]:
        if self.samples_responses:
            yield from self.rewards.mistakes()

    def _placement_mistakes(self) -> Iterator[str]:
        shares = any(not isinstance(judge, EndpointPart) for judge in self.rewards.judges)
        yield from self.placement.mistakes(shares, self.rollout.engine.instances, self.has.samplers)
        yield from self.placement.trainer_mistakes(
            lag=self.asynchrony.lag,
            overlaps=self.asynchrony.overlaps,
            engines=(self.engine_instances, self.devices_per_instance),
            ranks=self.trainer.engine.ranks,
        )

    def _teacher_mistakes(self) -> Iterator[str]:
        if self.algorithm.distillation is not None:
            yield from self.algorithm.distillation.mistakes(self.iterations)

    def _unfit_sampling(self) -> Iterator[str]:
        data = self.data
        samples = self.rollout.samples_per_prompt
        yield from misfits(self.dynamic_sampling, samples, data.prompts_per_iteration, data.logical_shards)

    def _evaluation_mistakes(self) -> Iterator[str]:
        if self.evaluation.samples > self.rollout.batch_samples:
            yield (
                f"evaluation.sampling.samples: {self.evaluation.samples} is more than rollout.batch_samples "
                f"{self.rollout.batch_samples}: all answers to a task are decoded in one batch"
            )

    def _tool_mistakes(self) -> Iterator[str]:
        names = [tool.name for tool in self.rollout.tools.functions] if self.rollout.tools else []
        if len(set(names)) < len(names):
            yield f"rollout.tools.functions: duplicate tool name in {names}"

    def _unseen_images(self, model: ModelFromConfig) -> Iterator[str]:
        if model.vision is None:
            yield "model.vision: required, because a source in data.sources has an image_field"
            return
        data = self.data
        response = self.rollout.max_response_tokens
        room = min(data.max_prompt_tokens, model.max_positions - response)
        if 0 < room <= model.vision.patches:
            yield (
                f"model.vision.image_size: an image of {model.vision.image_size} pixels takes {model.vision.patches} "
                f"tokens, but a prompt has room for {room}, text included (data.max_prompt_tokens "
                f"{data.max_prompt_tokens}; model.max_positions {model.max_positions} minus {response} for the "
                "response); use smaller images or larger patches"
            )

    def _too_long(self, positions: int) -> Iterator[str]:
        if self.rollout.max_response_tokens >= positions:
            yield no_room(self.rollout, self.data.max_prompt_tokens, positions, f"model.max_positions {positions}")
