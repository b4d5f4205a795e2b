"""Supervised fine-tuning: maximum likelihood of the responses.

    L = -(1 / T) * sum over responses y of log pi(y|x),    T = counted tokens of all responses

so that every token has the same weight, however the responses are distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from yatt_core.engines.train.objectives.scores import Scores
from yatt_core.spec.objective import SftObjective


@dataclass(frozen=True, slots=True)
class Sft:
    """Implements `Objective`."""

    linear: ClassVar[bool] = True
    labelled: ClassVar[bool] = False
    scalar: ClassVar[bool] = False
    spec: SftObjective

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the mean negative log-likelihood of a token."""
        return -scores.policy[scores.first].sum() / scores.tokens[scores.first].sum().clamp(min=1.0)

    def rewards(self, scores: Scores) -> None:
        """Returns nothing: there is no preference."""

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns nothing: there is no preference."""
        return scores.policy.new_zeros(0)
