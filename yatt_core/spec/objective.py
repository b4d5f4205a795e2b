"""What a run learns from data instead of from rewards: demonstrations, preferences, labels."""

from __future__ import annotations

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
