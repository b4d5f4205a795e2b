"""Simple preference optimisation (arXiv 2405.14734): length-normalised rewards with a target margin, no reference.

r(x, y) = beta / |y| * log pi(y|x)
L = mean over pairs (y+ preferred to y-) of -log sigmoid(r(x, y+) - r(x, y-) - gamma)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import logsigmoid

from yatt_core.engines.train.objectives.scores import Scores, mean, of_pairs
from yatt_core.spec.objective import SimpoObjective


@dataclass(frozen=True, slots=True)
class Simpo:
    """Implements `Objective`."""

    linear: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    scalar: ClassVar[bool] = False
    spec: SimpoObjective

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the mean loss of the pairs."""
        return mean(-logsigmoid(self.margins(scores) - self.spec.gamma), scores)

    def rewards(self, scores: Scores) -> torch.Tensor:
        """Returns r of each response, [N]; 0 for one without tokens."""
        return self.spec.beta * scores.policy / scores.tokens.clamp(min=1.0)

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns the difference of the rewards, before the target margin."""
        return of_pairs(self.rewards(scores), scores)
