"""The roles of a run as a plan treats them: rollout, judges and trainer, with their shapes, engines and lengths.

Consumes the spec and the assumptions; produces `Roles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from yatt_core.cluster.seating import check_seats, layout_of, most_ranks
from yatt_core.engines.rollout.vllm.settings import batch_mistake
from yatt_core.errors import ConfigurationError
from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.judges import GenerationEngine, JudgeRole, RewardModelRole, judges_of, reward_models_of
from yatt_core.planning.shape import ModelShape, shape_of, shape_of_model
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import VirtualRollout
from yatt_core.spec.sections.trainer import TrainerEngineSpec


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distributions of lengths, and the maximum lengths that the spec allows, in tokens."""

    prompt: Spread
    response: Spread
    judge: Spread
    longest_prompt: int
    longest_response: int
    longest_judgement: int

    @property
    def mean_prompt(self) -> float:
        """Mean length of the prompts."""
        return self.prompt.mean(self.longest_prompt)

    @property
    def mean_response(self) -> float:
        """Mean length of the responses."""
        return self.response.mean(self.longest_response)

    @property
    def mean_judgement(self) -> float:
        """Mean length of the judgements."""
        return self.judge.mean(self.longest_judgement)

    @property
    def mean_sample(self) -> float:
        """Mean length of prompt and response together."""
        return self.mean_prompt + self.mean_response


@dataclass(frozen=True, slots=True)
class Roles:
    """All roles of a run.

    judges: all judges that generate; only the times of the first one count.
    reference: whether a frozen copy of the policy is kept as reference.
    teachers: shapes of the teachers of one iteration, of the one that needs most.
    critic: shape of the critic, which has no projection to the vocabulary; None without a critic.
    """

    spec: RunSpec
    policy: ModelShape
    rollout: GenerationEngine
    trainer: TrainerEngineSpec
    judges: tuple[JudgeRole, ...]
    reward_models: tuple[RewardModelRole, ...]
    reference: bool
    teachers: tuple[ModelShape, ...]
    critic: ModelShape | None
    lengths: Lengths

    @property
    def judge(self) -> JudgeRole | None:
        """The judge whose times count."""
        return self.judges[0] if self.judges else None

    @property
    def adapters(self) -> int:
        """Parameters of low-rank adapters, if only those are trained; otherwise 0."""
        lora = self.spec.trainer.lora
        return 0 if lora is None else self.policy.adapter_parameters(lora.rank, lora.targets)

    @property
    def trained_parameters(self) -> int:
        """Parameters of policy and critic."""
        return self.policy.parameters + (0 if self.critic is None else self.critic.parameters)

    @property
    def samples(self) -> int:
        """Responses of an iteration if nothing is resampled; rows have up to two responses."""
        each = self.spec.rollout.samples_per_prompt if self.spec.samples_responses else 2
        return self.spec.data.prompts_per_iteration * each


def roles_of(spec: RunSpec, assumed: Assumptions) -> Roles:
    """Returns the roles of a spec, not yet checked by `check_sizes`.

    Raises `ConfigurationError` for a model of unknown shape.
    """
    shape = shape_of(spec, assumed.own_vocabulary)
    judges = judges_of(spec, assumed.own_vocabulary)
    return Roles(
        spec=spec,
        policy=shape,
        rollout=spec.rollout.engine,
        trainer=spec.trainer.engine,
        judges=judges,
        reward_models=reward_models_of(spec, assumed.own_vocabulary),
        reference=spec.keeps_reference,
        teachers=_teachers(spec, assumed.own_vocabulary),
        critic=_critic(spec, shape, assumed.own_vocabulary),
        lengths=_lengths(spec, assumed, judges, shape.max_positions),
    )


def check_sizes(roles: Roles, on_processors: bool) -> None:
    """Raises `ConfigurationError` if sizes are incompatible, with one line per mistake that starts with its key.

    on_processors: whether engines run on cores.
    """
    if mistakes := [*_mistakes(roles), *_batch_mistakes(roles, on_processors)]:
        raise ConfigurationError("\n".join(mistakes))


def _teachers(spec: RunSpec, own_vocabulary: int) -> tuple[ModelShape, ...]:
    distillation = spec.algorithm.distillation
    if distillation is None:
        return ()
    shapes = {
        teacher: shape_of_model(teacher.model, own_vocabulary, f"algorithm.distillation.teachers.{number}.model")
        for number, teacher in enumerate(distillation.teachers)
    }
    together = [
        tuple(shapes[each] for each in distillation.of(teacher.first_iteration)) for teacher in distillation.teachers
    ]
    return max(together, key=lambda those: sum(shape.parameters for shape in those), default=())


def _critic(spec: RunSpec, policy: ModelShape, own_vocabulary: int) -> ModelShape | None:
    if spec.critic is None:
        return None
    model = spec.critic.model
    shape = policy if model is None else shape_of_model(model, own_vocabulary, "algorithm.critic.model")
    return replace(shape, tied=True)


def _lengths(spec: RunSpec, assumed: Assumptions, judges: Sequence[JudgeRole], positions: int | None) -> Lengths:
    """Returns the lengths that a run may have; prompts have the room that a response leaves of the model's positions."""
    longest_prompt = spec.data.max_prompt_tokens
    longest_response = spec.rollout.max_response_tokens
    if positions and longest_response < positions:
        longest_prompt = min(longest_prompt, positions - longest_response)
    longest_judgement = max((judge.max_new_tokens for judge in judges), default=1)
    stated = _stated(judges[0].engine) if judges else None
    return Lengths(
        prompt=assumed.prompt or Spread(max(1.0, assumed.prompt_share * longest_prompt), assumed.prompt_sigma),
        response=assumed.response
        or _stated(spec.rollout.engine)
        or Spread(max(1.0, assumed.response_share * longest_response), assumed.response_sigma),
        judge=assumed.judge or stated or Spread(max(1.0, assumed.judge_share * longest_judgement), assumed.judge_sigma),
        longest_prompt=longest_prompt,
        longest_response=longest_response,
        longest_judgement=longest_judgement,
    )


def _stated(engine: GenerationEngine) -> Spread | None:
    """Returns the lengths that a virtual engine generates; None for other engines."""
    return Spread(engine.median_tokens, engine.sigma) if isinstance(engine, VirtualRollout) else None


def _mistakes(roles: Roles) -> Iterator[str]:
    """Yields what cannot work on any devices, one line per mistake that starts with the key."""
    response = roles.lengths.longest_response
    positions = roles.policy.max_positions
    longest = roles.lengths.longest_prompt + response
    if positions and response >= positions:
        yield (
            f"rollout.max_new_tokens: a response may have {response} tokens, but the model takes {positions} for prompt and "
            f"response together; expected a response of at most {positions - 1}"
        )
    yield from _engine_mistakes("rollout.engine", roles.rollout, roles.policy)
    for judge in roles.judges:
        yield from _engine_mistakes(f"{judge.place}.engine", judge.engine, judge.shape)
    trainer = roles.trainer
    if isinstance(trainer, MegatronTrainer):
        tensor = trainer.tensor_model_parallel_size
        stages = trainer.pipeline_model_parallel_size
        key = "trainer.engine.tensor_model_parallel_size"
        yield from _undivided(key, tensor, roles.policy.heads, "attention heads")
        yield from _undivided(key, tensor, roles.policy.key_value_heads, "key/value heads")
        yield from _undivided("trainer.engine.pipeline_model_parallel_size", stages, roles.policy.layers, "layers")
    budget = getattr(trainer, "micro_batch_tokens", None)
    if budget is not None and budget < longest:
        yield (
            f"trainer.engine.micro_batch_tokens: {budget} is less than the {longest} tokens that prompt and response may have; "
            f"expected at least {longest}"
        )


def _batch_mistakes(roles: Roles, on_processors: bool) -> Iterator[str]:
    """Yields what is wrong with the batches of vLLM's engines."""
    engines: list[tuple[str, GenerationEngine, int | None]] = []
    if roles.spec.samples_responses:
        engines.append(("rollout.engine", roles.rollout, roles.spec.longest_sequence(roles.policy.max_positions)))
    engines += [(f"{judge.place}.engine", judge.engine, judge.shape.max_positions) for judge in roles.judges]
    for key, engine, longest in engines:
        if not isinstance(engine, VllmRollout) or longest is None:
            continue
        said = batch_mistake(engine.max_num_batched_tokens, engine.max_num_seqs, longest, on_processors)
        if said:
            yield f"{key}.{said}"


def _engine_mistakes(key: str, engine: GenerationEngine, shape: ModelShape) -> Iterator[str]:
    if not isinstance(engine, VllmRollout):
        return
    tensor = engine.tensor_parallel_size
    yield from _undivided(f"{key}.tensor_parallel_size", tensor, shape.heads, "attention heads")
    if shape.heads % tensor == 0 and tensor % shape.key_value_heads and shape.key_value_heads % tensor:
        yield (
            f"{key}.tensor_parallel_size: neither of {tensor} and the model's {shape.key_value_heads} key/value heads divides "
            "the other"
        )
    yield from _undivided(
        f"{key}.tensor_parallel_size", tensor, shape.tower_heads, "attention heads of its vision tower"
    )
    yield from _undivided(f"{key}.pipeline_parallel_size", engine.pipeline_parallel_size, shape.layers, "layers")


def _undivided(key: str, parts: int, whole: int, what: str) -> Iterator[str]:
    if whole % parts:
        right = ", ".join(str(n) for n in range(1, min(whole, 64) + 1) if whole % n == 0)
        yield f"{key}: {parts} does not divide the model's {whole} {what}; expected one of {right}"


def own_ranks(trainer: TrainerEngineSpec) -> int:
    """Returns the number of devices that a copy of the model is split over; 1 for a trainer that shards everything."""
    if isinstance(trainer, MegatronTrainer):
        return trainer.tensor_model_parallel_size * trainer.pipeline_model_parallel_size
    return 1


def trainer_ranks(trainer: TrainerEngineSpec, by_node: Mapping[str, int]) -> int:
    """Returns the ranks on nodes with this many devices. Raises `ConfigurationError` if the nodes cannot hold them."""
    layout = layout_of(trainer)
    check_seats(by_node, layout)
    return layout.ranks or most_ranks(by_node, layout)
