"""The policy's objective on a micro-batch: the loss, the corrections, KL and entropy that the spec names, and metrics.

Consumes the trainer's log-probabilities and entropies of the micro-batch's response tokens, flattened, and what
was recorded about those tokens. Produces a differentiable contribution to the step's loss: the contributions of
all micro-batches and ranks add up to the loss, gradients included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from yatt_core.algorithms.distillation import taught_advantages
from yatt_core.algorithms.kl.estimators import bounded, divergence, is_bounded, k1
from yatt_core.algorithms.tokens import PolicyTokens, Responses
from yatt_core.engines.train.steps.coefficients import entropy_bonus, kl_coefficient
from yatt_core.spec.sections.algorithm import AlgorithmSpec


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What is known about a micro-batch's T counted response tokens, each [T] in float32.

    weights: `token_weights` of the token's response.
    mean_weights: those that make a sum over the step's tokens their mean.
    old: old log-probabilities; None if this is the only step on the experience, as the current ones are then the
        old ones.
    reference: None unless the loss has a KL term.
    teacher: None without distillation.
    responses: None unless the spec's objective reads whole responses.
    frozen: which tokens get no gradient; None if all do.
    """

    advantages: torch.Tensor
    weights: torch.Tensor
    mean_weights: torch.Tensor
    sampler: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None
    teacher: torch.Tensor | None = None
    responses: Responses | None = None
    frozen: torch.Tensor | None = None


@dataclass(slots=True)
class LossSums:
    """Additive sums and maxima over tokens, as Python floats; merged over micro-batches here, over ranks elsewhere."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def merge(self, other: LossSums) -> None:
        """Merges in another part of the batch."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)


SUM_NAMES = (
    "tokens", "loss", "policy_loss", "entropy", "clipped", "clamped", "gap", "kl", "distillation_kl",
    "importance_units", "importance_weight", "importance_squared", "importance_masked", "importance_capped",
    "off_policy_masked", "frozen",
)  # fmt: skip
NO_STATE: Mapping[str, float] = MappingProxyType({})
MAXIMUM_NAMES = ("ratio", "negative_ratio", "gap")


def objective(
    spec: AlgorithmSpec,
    log_probs: torch.Tensor,
    entropies: torch.Tensor,
    inputs: TokenInputs,
    state: Mapping[str, float] = NO_STATE,
) -> tuple[torch.Tensor, LossSums]:
    """Computes a micro-batch's loss: sum over tokens of weight * (importance * policy loss + kl).

    The bonus times the mean token entropy of the step is subtracted, whatever the weights are.

    Returns a scalar, and the maxima and the sums of `SUM_NAMES` (loss and policy_loss weighted as in the loss,
    all others plain sums over tokens).

    log_probs, entropies: [T], of the current weights at the sampling temperature.
    state: coefficients in the control state.
    """
    old = log_probs.detach() if inputs.old is None else inputs.old
    log_ratio = log_probs - old
    limited = bounded(log_ratio)
    beyond = is_bounded(log_ratio)
    sums: dict[str, torch.Tensor] = {}
    advantages = inputs.advantages
    if spec.distillation is not None and inputs.teacher is not None:
        taught = k1(old, inputs.teacher)
        advantages = taught_advantages(advantages, taught, spec.distillation.coefficient)
        sums["distillation_kl"] = taught.sum(dtype=torch.float64)
    tokens = PolicyTokens(
        log_probs=log_probs,
        old=old,
        sampler=inputs.sampler,
        advantages=advantages,
        log_ratio=limited,
        ratio=limited.exp(),
        responses=inputs.responses,
    )
    losses = spec.loss.token_losses(tokens)
    policy = _corrected(spec, tokens, losses.values, sums)
    if inputs.frozen is not None:
        policy = policy.where(~inputs.frozen, policy.detach())
        sums["frozen"] = inputs.frozen.sum(dtype=torch.float64)
    policy_sum = (policy * inputs.weights).sum()
    loss = policy_sum
    if spec.kl is not None and inputs.reference is not None:
        pull = divergence(spec.kl.formula, log_probs, inputs.reference)
        beyond = beyond | is_bounded(log_probs - inputs.reference)
        if spec.kl.unbiased:
            pull = tokens.ratio * pull
        loss = loss + kl_coefficient(spec, state) * (pull * inputs.weights).sum()
        sums["kl"] = pull.detach().sum(dtype=torch.float64)
    if spec.entropy_in_loss:
        loss = loss - entropy_bonus(spec, state) * (entropies * inputs.mean_weights).sum()
    gap = (old - inputs.sampler).abs()
    sums["loss"] = loss.detach()
    sums["policy_loss"] = policy_sum.detach()
    sums["entropy"] = entropies.detach().sum(dtype=torch.float64)
    sums["clipped"] = losses.clipped.sum(dtype=torch.float64)
    sums["clamped"] = beyond.sum(dtype=torch.float64)
    sums["gap"] = gap.sum(dtype=torch.float64)
    return loss, _collect(sums, tokens.ratio.detach(), gap)


def _corrected(
    spec: AlgorithmSpec, tokens: PolicyTokens, losses: torch.Tensor, sums: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Returns the losses of the policy with importance weights and masks, and adds what these are to the sums.

    The unit of weights is a token, or a response, each of whose n tokens is then 1/n of a unit.
    """
    if (correction := spec.importance_correction) is not None:
        weights = correction.weights(tokens)
        losses = losses * weights
        units = torch.ones_like(weights, dtype=torch.float64)
        if correction.by != "token":
            units /= tokens.whole.total(units)
        sums["importance_units"] = units.sum()
        sums["importance_weight"] = (units * weights).sum()
        sums["importance_squared"] = (units * weights.double().square()).sum()
        sums["importance_masked"] = (units * (weights == 0.0)).sum()
        sums["importance_capped"] = (units * (weights >= correction.ceiling)).sum()
    if spec.off_policy_mask is not None:
        masked = spec.off_policy_mask.masked(tokens)
        losses = losses.masked_fill(masked, 0.0)
        sums["off_policy_masked"] = masked.sum(dtype=torch.float64)
    return losses


def _collect(sums: dict[str, torch.Tensor], ratio: torch.Tensor, gap: torch.Tensor) -> LossSums:
    """Moves all sums out of torch in one transfer and adds the extremes."""
    found = list(sums.values()) + ([ratio.max(), ratio.min(), gap.max()] if ratio.numel() else [])
    numbers: list[float] = torch.stack([value.double() for value in found]).tolist()
    collected = LossSums(dict(zip(sums, numbers[: len(sums)], strict=True)))
    collected.sums["tokens"] = float(ratio.numel())
    if ratio.numel():
        highest, lowest, widest = numbers[len(sums) :]
        collected.maxima = {"ratio": highest, "negative_ratio": -lowest, "gap": widest}
    return collected
