"""What a run learns from data instead of from rewards: demonstrations, preferences, labels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.rewards.judges import known_placeholders


class ObjectiveBase(SpecModel):
    """Options of all objectives."""

    mini_batches: PositiveInt = 1
    """Optimizer steps per iteration, each on a part of its prompts."""


class SftObjective(ObjectiveBase):
    """Supervised fine-tuning: the likelihood of the answer in each row, averaged over all answer tokens."""

    kind: Literal["sft"] = "sft"


class PairObjective(ObjectiveBase):
    """Options of objectives that compare two responses to a prompt."""

    pairs: Literal["data", "sampled"] = "data"
    """`data`: each row contains the preferred and the other response. `sampled`: the policy samples
    `rollout.samples_per_prompt` responses, and those with the highest and the lowest reward form a pair (online DPO, arXiv
    2402.04792); rewards may come from judges."""


class DpoObjective(PairObjective):
    """Direct preference optimisation (arXiv 2305.18290)."""

    kind: Literal["dpo"] = "dpo"
    beta: PositiveFloat = 0.1
    """How strongly the policy is kept near the reference: the weights before the first iteration."""
    label_smoothing: NonNegativeFloat = Field(default=0.0, lt=0.5)
    """Probability that a pair is in the wrong order (conservative DPO)."""


class SimpoObjective(PairObjective):
    """Simple preference optimisation (arXiv 2405.14734): mean log-probabilities, a target margin, and no reference."""

    kind: Literal["simpo"] = "simpo"
    beta: PositiveFloat = 2.0
    """Factor of the mean log-probability of a response's tokens."""
    gamma: NonNegativeFloat = 1.0
    """Target margin between the rewards of the two responses."""


class KtoObjective(ObjectiveBase):
    """Kahneman-Tversky optimisation (arXiv 2402.01306): single responses, each labelled as desirable or not."""

    kind: Literal["kto"] = "kto"
    beta: PositiveFloat = 0.1
    """How strongly the policy is kept near the reference: the weights before the first iteration."""
    desirable_weight: PositiveFloat = 1.0
    """Weight of the desirable responses."""
    undesirable_weight: PositiveFloat = 1.0
    """Weight of the undesirable responses. The paper recommends weights whose products with the numbers of responses are
    within 1 : 1 and 4 : 3."""


class RewardModelObjective(ObjectiveBase):
    """A reward model (Bradley-Terry, arXiv 2203.02155): the model's layers with a scalar head in place of its own."""

    kind: Literal["reward_model"] = "reward_model"
    template: str | None = None
    """Text with the placeholders {prompt} and {response}, as in a reward part of kind `reward_model`; `null`: the
    tokenizer's chat template."""

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str | None) -> str | None:
        return known_placeholders(template)


ObjectiveSpec = Annotated[
    SftObjective | DpoObjective | SimpoObjective | KtoObjective | RewardModelObjective, Field(discriminator="kind")
]


def learns_from_rows(objective: ObjectiveSpec) -> bool:
    """Returns True if nothing is sampled: the rows of the data contain the responses to learn from."""
    return not isinstance(objective, PairObjective) or objective.pairs == "data"


def contradictions(objective: ObjectiveSpec, given: Collection[str]) -> Iterator[str]:
    """Yields what a run with an objective cannot have, one line per contradiction, starting with the key.

    given: what the rest of the spec has, by the names used here.
    """
    kind = objective.kind
    problems = [
        ("algorithm", f"algorithm: objective.kind {kind} takes its place; leave algorithm out"),
        ("virtual", f"objective: a virtual trainer has no model that could learn {kind}; use a real one, or null"),
        ("images", f"objective.kind: {kind} supports text prompts only; leave image_field out"),
    ]
    problems.append(("critique", f"rewards.critique: objective.kind {kind} learns from whole responses; use null"))
    if isinstance(objective, RewardModelObjective):
        problems += [
            ("megatron", "objective.kind: Megatron-Core cannot train a reward model; train with fsdp2 or torch"),
            ("lora", "trainer.lora: adapters leave the new head of a reward model untrained; use null"),
        ]
    if learns_from_rows(objective):
        why = "the run learns from its data and samples nothing"
        problems += [
            ("sft", f"sft: {why}; use null, and objective.kind sft in a run of its own"),
            ("rewards", f"rewards.parts: {why}; leave rewards out"),
            ("evaluation", f"evaluation.sampling, promotion and suites: {why}; leave them out"),
            ("curriculum", f"data.curriculum: {why}; use null"),
            ("tools", f"rollout.tools: {why}; use null"),
            ("dynamic_sampling", f"dynamic_sampling: {why}; leave it out"),
        ]
        if kind != "sft":
            problems.append(("reasoning_gym", "data.sources: reasoning_gym has answers, but no preferences; use files"))
    yield from (text for name, text in problems if name in given)
