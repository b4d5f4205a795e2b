"""What an objective sees of an optimizer step: a score for each response, and which responses belong together.

Consumes nothing. A score is the sum of the log-probabilities of a response's counted tokens, or the output of a scalar
head. A loss is a function of the scores of all responses of a step, whichever rank and micro-batch they are in; its
gradient with respect to the scores is all that a model needs to know about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of N responses, on the CPU, in G groups of two responses each (of one, for supervised training).

    policy: [N] in float64.
    reference: [N] in float64, under the reference's weights; zeros for an objective without a reference.
    tokens: [N] in float64, counted tokens of each response.
    first: [G], index of the preferred response of a pair, or of the labelled response.
    second: [G], index of the other response of the pair, or of the response to another prompt; empty if groups have a
        single response.
    desirable: [G], the label of the group's response; True for pairs.
    """

    policy: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    desirable: torch.Tensor

    @property
    def log_ratios(self) -> torch.Tensor:
        """log(policy / reference) of whole responses, [N]."""
        return self.policy - self.reference


class Objective(Protocol):
    """A method of learning from data.

    linear: whether the loss is linear in the scores, so that its gradient does not depend on them.
    labelled: whether a group is a labelled response and a response to another prompt, which is only scored; otherwise
        it is a pair, or a single response.
    scalar: whether a score is the output of a head, and not a log-probability.
    """

    linear: ClassVar[bool]
    labelled: ClassVar[bool]
    scalar: ClassVar[bool]

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the loss of a step, a scalar in float64 that is differentiable in `scores.policy`; 0 without groups."""
        ...

    def rewards(self, scores: Scores) -> torch.Tensor | None:
        """Returns the reward that the model gives each response, [N]; None if responses are not compared in pairs."""
        ...

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns by how much the model agrees with each group's preference or label, [G]; negative if it disagrees."""
        ...


def mean(losses: torch.Tensor, scores: Scores) -> torch.Tensor:
    """Returns the mean of the losses of the groups, [G]; 0 without groups."""
    return losses.sum() / max(len(scores.first), 1)


def of_pairs(rewards: torch.Tensor, scores: Scores) -> torch.Tensor:
    """Returns the reward of the preferred response minus that of the other one, [G]."""
    return rewards[scores.first] - rewards[scores.second]
