"""Kahneman-Tversky optimisation (arXiv 2402.01306): single responses with a label.

r(x, y) = log pi(y|x) - log ref(y|x)
z = max(0, mean over prompts of r(x, y')), without gradient, where y' is the response to another prompt
L = mean over responses of w+ * (1 - sigmoid(beta * (r - z))) if desirable, else w- * (1 - sigmoid(beta * (z - r)))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from yatt_core.engines.train.objectives.scores import Scores, mean
from yatt_core.spec.objective import KtoObjective


@dataclass(frozen=True, slots=True)
class Kto:
    """Implements `Objective`."""

    linear: ClassVar[bool] = False
    labelled: ClassVar[bool] = True
    scalar: ClassVar[bool] = False
    spec: KtoObjective

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the mean loss of the labelled responses."""
        desirable = self.spec.desirable_weight
        undesirable = self.spec.undesirable_weight
        weights = scores.policy.new_tensor([undesirable, desirable])[scores.desirable.long()]
        # 1 - sigmoid(m) is sigmoid(-m), which does not lose small values.
        return mean(weights * torch.sigmoid(-self.margins(scores)), scores)

    def rewards(self, scores: Scores) -> None:
        """Returns nothing: single responses are labelled."""

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns beta * (r - z) of the desirable responses, and its negative of the others."""
        others = scores.log_ratios[scores.second].detach()
        divergence = (others.sum() / max(len(others), 1)).clamp(min=0.0)
        values = self.spec.beta * (scores.log_ratios[scores.first] - divergence)
        return torch.where(scores.desirable, values, -values)
