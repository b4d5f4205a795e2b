"""The learning rule and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.model import ModelFolder
from yatt_core.spec.sections.trainer import AdamWSpec


class KlSpec(SpecModel):
    """A pull towards the reference policy: the weights before the first iteration."""

    coefficient: PositiveFloat = 0.01
    """Weight of the pull."""
    where: Literal["loss", "reward"] = "loss"
    """In the loss (k3 estimator, per token) or taken off the reward (sum of log-ratios over the response)."""


class DistillationSpec(SpecModel):
    """On-policy distillation: a frozen teacher says of each token of the policy what it thinks of it (arXiv 2306.13649)."""

    teacher: ModelFolder
    """A model of the policy's tokenizer, of any size. It lies on the trainer's ranks."""
    coefficient: PositiveFloat = 1.0
    """Times log(policy / teacher) of a token, which is taken off the token's advantage: the reverse KL's gradient."""


class ImportanceCorrectionSpec(SpecModel):
    """Truncated importance sampling (TIS): weights each token by min(exp(old - sampler), cap), without gradient."""

    cap: PositiveFloat
    """Maximum weight of a token."""


class PolicyGradientSpec(SpecModel):
    """What the learning rules have in common."""

    kind: Literal["grpo", "ppo"]
    epochs: PositiveInt = 1
    """Passes over an iteration's experience."""
    mini_batches: PositiveInt = 1
    """Optimizer steps in a pass."""
    clip_low: PositiveFloat = Field(default=0.2, lt=1.0)
    """The ratio of new to old probability pushes no further below 1 - `clip_low`."""
    clip_high: PositiveFloat = 0.2
    """Nor above 1 + `clip_high`; more than `clip_low` is DAPO's clip-higher (arXiv 2503.14476)."""
    kl: KlSpec | None = None
    """`null`: no pull, and no reference policy is kept."""
    distillation: DistillationSpec | None = None
    """`null`: no teacher. For a teacher alone give the parts of the reward the weight 0."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Coefficient of the mean token entropy, added to the objective."""
    epsilon: PositiveFloat = 1e-4
    """Added to the deviation."""
    reward_scaling: Literal["none", "running"] = "none"
    """`running`: rewards are divided by the standard deviation of all rewards of the iterations before (arXiv 2307.04964)."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """Mean over all tokens, mean over sequences of their token means, or the sum over sequences x `max_new_tokens`."""
    importance_correction: ImportanceCorrectionSpec | None = None
    """Correction for the difference between sampler and trainer; `null`: none."""


class GrpoSpec(PolicyGradientSpec):
    """Group relative policy optimisation (arXiv 2402.03300) and its usual variants."""

    kind: Literal["grpo"] = "grpo"
    normalise: Literal["group_std", "group_mean", "batch_std"] = "group_std"
    """Reward less the group's mean, over the group's deviation, over 1 (arXiv 2503.20783), or over the batch's."""
    permute_advantages: bool = False
    """Negative control: a seeded permutation of the advantages over the batch, under which nothing can be learnt."""


class CriticAdamWSpec(AdamWSpec):
    """AdamW of the critic, with gradient clipping by global norm."""

    learning_rate: PositiveFloat = 1e-5
    """It stays as it is, whatever `trainer.schedule` says."""


class CriticSpec(SpecModel):
    """A model that says of each token what reward is still to come: the policy's layers under a head of one output."""

    model: ModelFolder | None = None
    """What it begins with, a causal language model of the policy's tokenizer; `null`: the policy, behind its SFT."""
    optimizer: CriticAdamWSpec = CriticAdamWSpec()
    """Apart from the policy's."""
    clip: PositiveFloat | None = 0.2
    """A value counts in the loss no nearer to its return than so far from what it was before the update; `null`: unbounded."""
    warmup_iterations: NonNegativeInt = 0
    """First iterations in which the critic learns alone, and the policy stays as it is."""


class PpoSpec(PolicyGradientSpec):
    """Proximal policy optimisation (arXiv 1707.06347): advantages of single tokens, by a critic."""

    kind: Literal["ppo"] = "ppo"
    gamma: PositiveFloat = Field(default=1.0, le=1.0)
    """gamma of generalised advantage estimation (arXiv 1506.02438): what a reward a token later is worth."""
    gae_lambda: NonNegativeFloat = Field(default=0.95, le=1.0)
    """lambda: 0 trusts the critic's next value alone, 1 the rewards that came."""
    normalise: Literal["batch_std", "none"] = "batch_std"
    """`batch_std`: advantages less the mean over the batch's tokens, over their deviation."""
    critic: CriticSpec = CriticSpec()


AlgorithmSpec = Annotated[GrpoSpec | PpoSpec, Field(discriminator="kind")]
