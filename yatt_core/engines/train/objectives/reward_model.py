"""A reward model from preferences: the Bradley-Terry model (as in arXiv 2203.02155).

L = mean over pairs (y+ preferred to y-) of -log sigmoid(r(x, y+) - r(x, y-)),    r = output of a scalar head
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import logsigmoid

from yatt_core.engines.train.objectives.scores import Scores, mean, of_pairs
from yatt_core.spec.objective import RewardModelObjective


@dataclass(frozen=True, slots=True)
class RewardModel:
    """Implements `Objective`; a score is the head's output after the last token."""

    linear: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    scalar: ClassVar[bool] = True
    spec: RewardModelObjective

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the mean loss of the pairs."""
        return mean(-logsigmoid(self.margins(scores)), scores)

    def rewards(self, scores: Scores) -> torch.Tensor:
        """Returns the outputs of the head, [N]."""
        return scores.policy

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns the difference of the rewards."""
        return of_pairs(self.rewards(scores), scores)
