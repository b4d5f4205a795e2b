"""What a spec may have that does not go with everything else: engines, algorithms, data, judges, and how weights travel.

Pure. Consumes a spec. Produces, for each feature, the words with which sentences name where or what it is; none if the spec does
not have it. `combinations` says which of them exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from yatt_core.spec.objective import ObjectiveSpec, RewardModelObjective, SftObjective
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, RewardModelPart, TorchJudge, VirtualJudge
from yatt_core.spec.rewards.scheme import RewardSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.algorithm import AlgorithmSpec
from yatt_core.spec.sections.asynchrony import AsynchronySpec
from yatt_core.spec.sections.data import DataSpec, ReasoningGymSource
from yatt_core.spec.sections.dynamic_sampling import AllGroups, DynamicSamplingSpec
from yatt_core.spec.sections.evaluation import EvaluationSpec
from yatt_core.spec.sections.model import ModelFromConfig, ModelSpec, SftSpec
from yatt_core.spec.sections.rollout import RolloutSpec, TorchRollout, VirtualRollout
from yatt_core.spec.sections.storage import StorageSpec
from yatt_core.spec.sections.trainer import TorchTrainer, TrainerSpec
from yatt_core.spec.sections.workload import WorkloadSpec

Words = Iterator[str]


class SpecSections(Protocol):
    """What features are read from: a `RunSpec`, which imports this module."""

    @property
    def workload(self) -> WorkloadSpec: ...
    @property
    def model(self) -> ModelSpec: ...
    @property
    def sft(self) -> SftSpec | None: ...
    @property
    def data(self) -> DataSpec: ...
    @property
    def rollout(self) -> RolloutSpec: ...
    @property
    def dynamic_sampling(self) -> DynamicSamplingSpec: ...
    @property
    def rewards(self) -> RewardSpec: ...
    @property
    def algorithm(self) -> AlgorithmSpec: ...
    @property
    def objective(self) -> ObjectiveSpec | None: ...
    @property
    def trainer(self) -> TrainerSpec: ...
    @property
    def asynchrony(self) -> AsynchronySpec: ...
    @property
    def evaluation(self) -> EvaluationSpec: ...
    @property
    def storage(self) -> StorageSpec: ...
    @property
    def samples_responses(self) -> bool: ...
    @property
    def replays_support(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a spec may have.

    name: what it is called in the table.
    key: what says so in a spec.
    found: yields a word for each place in which a spec has it, by which sentences name it; nothing if it does not have it.
    word: stands for such a word in the table.
    """

    name: str
    key: str
    found: Callable[[SpecSections], Words]
    word: str = ""


def _where(holds: Callable[[SpecSections], bool]) -> Callable[[SpecSections], Words]:
    """Returns what finds a feature that a spec has once, and that sentences need no word for."""

    def found(spec: SpecSections) -> Words:
        if holds(spec):
            yield ""

    return found


def _generates(kind: str) -> Callable[[SpecSections], Words]:
    return lambda spec: iter([kind] if spec.rollout.engine.kind == kind else [])


def _trains(kind: str) -> Callable[[SpecSections], Words]:
    return lambda spec: iter([kind] if spec.trainer.engine.kind == kind else [])


def _judges(holds: Callable[[object], bool]) -> Callable[[SpecSections], Words]:
    return lambda spec: (part.name for part in spec.rewards.judges if holds(part))


def _served(engine: type[object]) -> Callable[[object], bool]:
    return lambda part: isinstance(part, GenerativePart) and isinstance(part.engine, engine)


def _objective(spec: SpecSections) -> Words:
    if spec.objective is not None:
        yield spec.objective.kind


def _learns_from_rows(spec: SpecSections) -> bool:
    return spec.objective is not None and not spec.samples_responses


def _own_workload(spec: SpecSections) -> Words:
    if not spec.workload.is_language:
        yield spec.workload.title


def _preferences(spec: SpecSections) -> Words:
    if _learns_from_rows(spec) and not isinstance(spec.objective, SftObjective):
        yield from _objective(spec)


def _batches_continuously(spec: SpecSections) -> bool:
    return isinstance(spec.rollout.engine, VirtualRollout) and spec.rollout.engine.continuous


def _sees_images(spec: SpecSections) -> bool:
    return spec.data.has_images or (isinstance(spec.model, ModelFromConfig) and spec.model.vision is not None)


def _whole_responses(spec: SpecSections) -> Words:
    if spec.algorithm.loss.whole_responses:
        yield spec.algorithm.loss.kind


def _batch_advantage(spec: SpecSections) -> Words:
    if not spec.algorithm.advantage.by_group:
        yield spec.algorithm.advantage.kind


def _repetition_penalty(spec: SpecSections) -> Words:
    if spec.rollout.repetition_penalty != 1.0:
        yield f"{spec.rollout.repetition_penalty:g}"


def _has_teachers(spec: SpecSections) -> bool:
    return spec.algorithm.distillation is not None and bool(spec.algorithm.distillation.teachers)


def _teaches_itself(spec: SpecSections) -> bool:
    return spec.algorithm.distillation is not None and spec.algorithm.distillation.privileged is not None


VIRTUAL_ROLLOUT = Feature("virtual rollout", "rollout.engine.kind: virtual", _generates("virtual"), "virtual")
TORCH_ROLLOUT = Feature("torch rollout", "rollout.engine.kind: torch", _generates("torch"), "torch")
CONTINUOUS_TORCH_ROLLOUT = Feature(
    "torch rollout with continuous batching",
    "rollout.engine.continuous",
    _where(lambda spec: isinstance(spec.rollout.engine, TorchRollout) and spec.rollout.engine.continuous),
)
VLLM_ROLLOUT = Feature("vLLM rollout", "rollout.engine.kind: vllm", _generates("vllm"), "vllm")
CONTINUOUS_ROLLOUT = Feature(
    "virtual rollout with continuous batching", "rollout.engine.max_num_seqs", _where(_batches_continuously)
)
SPANNING_ROLLOUT = Feature(
    "vLLM rollout over several hosts",
    "rollout.engine.pipeline_parallel_size",
    _where(
        lambda spec: isinstance(spec.rollout.engine, VllmRollout) and spec.rollout.engine.pipeline_parallel_size > 1
    ),
)
VIRTUAL_TRAINER = Feature("virtual trainer", "trainer.engine.kind: virtual", _trains("virtual"), "virtual")
TORCH_TRAINER = Feature("torch trainer", "trainer.engine.kind: torch", _trains("torch"), "torch")
FSDP2_TRAINER = Feature("FSDP2 trainer", "trainer.engine.kind: fsdp2", _trains("fsdp2"), "fsdp2")
MEGATRON_TRAINER = Feature("Megatron-Core trainer", "trainer.engine.kind: megatron", _trains("megatron"), "megatron")
PACKED = Feature(
    "packed samples",
    "trainer.engine.packed",
    _where(lambda spec: isinstance(spec.trainer.engine, TorchTrainer) and spec.trainer.engine.packed),
)
LORA = Feature("LoRA", "trainer.lora", _where(lambda spec: spec.trainer.lora is not None))
ADAPTER_SYNC = Feature(
    "LoRA that sends adapters alone",
    "trainer.lora.sync: adapter",
    _where(lambda spec: spec.trainer.lora is not None and spec.trainer.lora.sync == "adapter"),
)
DELTA_SYNC = Feature(
    "weights sent as changes", "trainer.sync: delta", _where(lambda spec: spec.trainer.sync == "delta")
)
OBJECT_STORE = Feature(
    "an object store for hosts without a common disk",
    "storage.url",
    _where(lambda spec: spec.storage.url is not None),
)
IMAGES = Feature("prompts with images", "data.sources[].image_field", _where(lambda spec: spec.data.has_images))
SEEING_MODEL = Feature("a model that sees images", "data.sources[].image_field or model.vision", _where(_sees_images))
RENDERED = Feature(
    "rendered prompts",
    "data.sources[].rendered",
    lambda spec: (str(number) for number in spec.data.rendered_sources),
    "N",
)
REASONING_GYM = Feature(
    "generated tasks",
    "data.sources[].kind: reasoning_gym",
    _where(lambda spec: any(isinstance(source, ReasoningGymSource) for source in spec.data.sources)),
)
CURRICULUM = Feature("a curriculum", "data.curriculum", _where(lambda spec: spec.data.curriculum is not None))
TOOLS = Feature("tools", "rollout.tools", _where(lambda spec: spec.rollout.tools is not None))
REPETITION_PENALTY = Feature("a repetition penalty", "rollout.repetition_penalty", _repetition_penalty, "NUMBER")
DYNAMIC_SAMPLING = Feature(
    "dynamic sampling",
    "dynamic_sampling",
    _where(lambda spec: spec.dynamic_sampling not in (AllGroups(), AllGroups(refill=None))),
)
OVERDISPATCH = Feature(
    "over-dispatch",
    "dynamic_sampling.overdispatch",
    _where(lambda spec: spec.dynamic_sampling.overdispatch is not None),
)
CHOSEN_GROUPS = Feature(
    "a choice among groups",
    "dynamic_sampling.kind: other than all, or a deadline",
    _where(lambda spec: spec.dynamic_sampling.kind != "all" or spec.dynamic_sampling.deadline is not None),
)
SLICES = Feature("slices", "rollout.slice_tokens", _where(lambda spec: spec.rollout.slice_tokens is not None))
TAIL = Feature("a tail", "rollout.tail", _where(lambda spec: spec.rollout.tail is not None))
LAG = Feature("a lag", "asynchrony.lag", _where(lambda spec: spec.asynchrony.lag > 0))
STREAMED = Feature("streamed learning", "asynchrony.streamed", _where(lambda spec: spec.asynchrony.streamed))
SFT = Feature("SFT before the first iteration", "sft", _where(lambda spec: spec.sft is not None))
ANSWERED_EVALUATION = Feature(
    "sampled evaluation, promotion or suites",
    "evaluation.sampling, promotion, suites, deadline",
    _where(lambda spec: spec.evaluation.needs_responses),
)
ALGORITHM = Feature("settings of the algorithm", "algorithm", _where(lambda spec: spec.algorithm != AlgorithmSpec()))
CRITIC = Feature("a critic (PPO)", "algorithm.critic", _where(lambda spec: spec.algorithm.critic is not None))
SEVERAL_STEPS = Feature(
    "several optimizer steps an iteration",
    "algorithm.epochs or mini_batches",
    _where(lambda spec: spec.algorithm.epochs * spec.algorithm.mini_batches > 1),
)
BATCH_ADVANTAGE = Feature(
    "an advantage that reads the whole batch",
    "algorithm.advantage.kind: batch_std, gdpo, reinforce_plus_plus, gae or custom",
    _batch_advantage,
    "KIND",
)
PERMUTED_ADVANTAGES = Feature(
    "permuted advantages",
    "algorithm.permute_advantages",
    _where(lambda spec: spec.algorithm.permute_advantages),
)
FREEZING_ENTROPY = Feature(
    "an entropy method that freezes tokens",
    "algorithm.entropy.kind: clip_cov",
    _where(lambda spec: spec.algorithm.needs_old),
)
ENTROPY_BY_SEQUENCE = Feature(
    "an entropy bonus beside a loss that is no mean over tokens",
    "algorithm.entropy, with aggregation sequence_mean or fixed_length",
    _where(lambda spec: spec.algorithm.entropy_in_loss and spec.algorithm.aggregation != "token_mean"),
)
GDPO = Feature(
    "the advantage gdpo", "algorithm.advantage.kind: gdpo", _where(lambda spec: spec.algorithm.advantage.kind == "gdpo")
)
WHOLE_RESPONSE_LOSS = Feature(
    "a loss of whole responses", "algorithm.loss.kind: gspo or gmpo", _whole_responses, "KIND"
)
LENGTH_PENALTY = Feature(
    "a length penalty", "algorithm.length_penalty", _where(lambda spec: spec.algorithm.length_penalty is not None)
)
REWARD_SCALING = Feature(
    "scaled rewards", "algorithm.reward_scaling", _where(lambda spec: spec.algorithm.reward_scaling != "none")
)
REPLAYED_SUPPORT = Feature(
    "replayed supports", "algorithm.sampler_support: replay", _where(lambda spec: spec.replays_support)
)
TEACHERS = Feature("teachers", "algorithm.distillation.teachers", _where(_has_teachers))
SELF_DISTILLATION = Feature("self-distillation", "algorithm.distillation.privileged", _where(_teaches_itself))
REWARDS = Feature("rewards", "rewards.parts", _where(lambda spec: bool(spec.rewards.parts)))
CRITIQUE = Feature("critiques", "rewards.critique", _where(lambda spec: spec.rewards.critique is not None))
TORCH_JUDGE = Feature(
    "a judge on the torch engine", "rewards.parts[].engine.kind: torch", _judges(_served(TorchJudge)), "NAME"
)
VLLM_JUDGE = Feature("a judge on vLLM", "rewards.parts[].engine.kind: vllm", _judges(_served(VllmRollout)), "NAME")
VIRTUAL_JUDGE = Feature(
    "a virtual judge", "rewards.parts[].engine.kind: virtual", _judges(_served(VirtualJudge)), "NAME"
)
ENDPOINT_JUDGE = Feature(
    "a judge at an endpoint",
    "rewards.parts[].kind: endpoint",
    _judges(lambda part: isinstance(part, EndpointPart)),
    "NAME",
)
REWARD_MODEL = Feature(
    "a reward model",
    "rewards.parts[].kind: reward_model",
    _judges(lambda part: isinstance(part, RewardModelPart)),
    "NAME",
)
OBJECTIVE = Feature("an objective", "objective", _objective, "KIND")
ROWS_OBJECTIVE = Feature("an objective that learns from rows", "objective, with pairs: data", _where(_learns_from_rows))
PREFERENCE_ROWS = Feature(
    "an objective that learns from preferences in rows",
    "objective.kind: dpo, simpo, kto or reward_model",
    _preferences,
    "KIND",
)
REWARD_MODEL_OBJECTIVE = Feature(
    "training a reward model",
    "objective.kind: reward_model",
    _where(lambda spec: isinstance(spec.objective, RewardModelObjective)),
)
OWN_WORKLOAD = Feature("a workload of your own", "workload.kind: neither language nor rows", _own_workload, "KIND")
DATA = Feature("data", "data.sources", _where(lambda spec: bool(spec.data.sources)))
MODEL = Feature("a model", "model", _where(lambda spec: spec.model != ModelFromConfig()))

FEATURES: tuple[Feature, ...] = (
    VIRTUAL_ROLLOUT,
    CONTINUOUS_ROLLOUT,
    TORCH_ROLLOUT,
    CONTINUOUS_TORCH_ROLLOUT,
    VLLM_ROLLOUT,
    SPANNING_ROLLOUT,
    VIRTUAL_TRAINER,
    TORCH_TRAINER,
    PACKED,
    FSDP2_TRAINER,
    MEGATRON_TRAINER,
    LORA,
    ADAPTER_SYNC,
    DELTA_SYNC,
    OBJECT_STORE,
    IMAGES,
    SEEING_MODEL,
    RENDERED,
    REASONING_GYM,
    CURRICULUM,
    TOOLS,
    REPETITION_PENALTY,
    DYNAMIC_SAMPLING,
    OVERDISPATCH,
    CHOSEN_GROUPS,
    SLICES,
    TAIL,
    LAG,
    STREAMED,
    SFT,
    ANSWERED_EVALUATION,
    ALGORITHM,
    CRITIC,
    SEVERAL_STEPS,
    BATCH_ADVANTAGE,
    PERMUTED_ADVANTAGES,
    FREEZING_ENTROPY,
    ENTROPY_BY_SEQUENCE,
    GDPO,
    WHOLE_RESPONSE_LOSS,
    LENGTH_PENALTY,
    REWARD_SCALING,
    REPLAYED_SUPPORT,
    TEACHERS,
    SELF_DISTILLATION,
    REWARDS,
    CRITIQUE,
    TORCH_JUDGE,
    VLLM_JUDGE,
    VIRTUAL_JUDGE,
    ENDPOINT_JUDGE,
    REWARD_MODEL,
    OBJECTIVE,
    ROWS_OBJECTIVE,
    PREFERENCE_ROWS,
    REWARD_MODEL_OBJECTIVE,
    OWN_WORKLOAD,
    DATA,
    MODEL,
)
"""All features, in the order of docs/combinations.md."""
