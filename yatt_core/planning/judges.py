"""The judges of a spec as a plan treats them: the parts `generative` and `reward_model`, their shapes and engines.

Consumes the spec's reward parts; produces a `JudgeRole` or a `RewardModelRole` for each. Raises
`ConfigurationError` for a model of unknown shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.planning.shape import ModelShape, shape_of_model
from yatt_core.spec.rewards.judges import GenerativePart, JudgeEngineSpec, RewardModelPart, VirtualJudge
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout
from yatt_core.spec.template import pieces_of

GenerationEngine = VllmRollout | TorchRollout | VirtualRollout
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class JudgeRole:
    """A judge model with an engine of its own.

    place: key of its part in the spec.
    template_tokens: tokens of the template around the text to be judged.
    max_num_seqs: maximum number of concurrent judgements if the part of the spec sets it; None if the engine does.
    """

    name: str
    place: str
    shape: ModelShape
    engine: GenerationEngine
    judgements: int
    max_new_tokens: int
    template_tokens: int
    max_num_seqs: int | None


@dataclass(frozen=True, slots=True)
class RewardModelRole:
    """A classifier over prompt and response, as specified by its part of the spec."""

    shape: ModelShape
    part: RewardModelPart


def judges_of(spec: RunSpec, own_vocabulary: int) -> tuple[JudgeRole, ...]:
    """Returns the judges that generate.

    own_vocabulary: assumed vocabulary of a tokenizer that is yet to be trained.
    """
    return tuple(
        _judge_role(part, f"rewards.parts.{number}", spec, own_vocabulary)
        for number, part in enumerate(spec.rewards.parts)
        if isinstance(part, GenerativePart)
    )


def reward_models_of(spec: RunSpec, own_vocabulary: int) -> tuple[RewardModelRole, ...]:
    """Returns the classifiers."""
    return tuple(
        RewardModelRole(shape_of_model(part.model, own_vocabulary, f"rewards.parts.{number}.model"), part)
        for number, part in enumerate(spec.rewards.parts)
        if isinstance(part, RewardModelPart)
    )


def _judge_role(part: GenerativePart, place: str, spec: RunSpec, own_vocabulary: int) -> JudgeRole:
    """Returns the role of a part.

    place: key of the part in the spec.
    """
    return JudgeRole(
        name=part.name,
        place=place,
        # A virtual judge has no model; its engine defines its times, and it takes no memory.
        shape=shape_of_model(spec.model if part.model is None else part.model, own_vocabulary, f"{place}.model"),
        engine=_engine(part.engine, spec),
        judgements=part.judgements,
        max_new_tokens=part.max_new_tokens,
        template_tokens=-(-sum(len(text) for text, _ in pieces_of(part.template)) // CHARACTERS_PER_TOKEN),
        max_num_seqs=None if isinstance(part.engine, VllmRollout) else part.engine.max_num_seqs,
    )


def _engine(engine: JudgeEngineSpec, spec: RunSpec) -> GenerationEngine:
    """Returns the judge's engine in the form of a rollout engine of the same kind.

    Unless it is a vLLM engine, it has as many instances as the policy's engine, with which they take turns.
    """
    if isinstance(engine, VllmRollout):
        return engine
    instances = max(1, spec.rollout.engine.instances)
    if isinstance(engine, VirtualJudge):
        return VirtualRollout(
            instances=instances,
            base_seconds=engine.base_seconds,
            seconds_per_sequence=engine.seconds_per_sequence,
            seconds_per_context_token=engine.seconds_per_context_token,
            seconds_per_prompt_token=engine.seconds_per_prompt_token,
            max_num_seqs=engine.max_num_seqs if spec.rollout.engine.continuous else None,
            clock_factor=engine.clock_factor,
            median_tokens=engine.median_tokens,
            sigma=engine.sigma,
        )
    return TorchRollout(instances=instances, dtype=engine.dtype)
