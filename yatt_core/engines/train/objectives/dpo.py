"""Direct preference optimisation (arXiv 2305.18290), with the label smoothing of its conservative variant.

h = beta * [(log pi(y+|x) - log ref(y+|x)) - (log pi(y-|x) - log ref(y-|x))]
L = mean over pairs (y+ preferred to y-) of -(1 - s) * log sigmoid(h) - s * log sigmoid(-h)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import logsigmoid

from yatt_core.engines.train.objectives.scores import Scores, mean, of_pairs
from yatt_core.spec.objective import DpoObjective


@dataclass(frozen=True, slots=True)
class Dpo:
    """Implements `Objective`."""

    linear: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    scalar: ClassVar[bool] = False
    spec: DpoObjective

    def loss(self, scores: Scores) -> torch.Tensor:
        """Returns the mean loss of the pairs."""
        margins = self.margins(scores)
        wrong = self.spec.label_smoothing
        return mean(-(1 - wrong) * logsigmoid(margins) - wrong * logsigmoid(-margins), scores)

    def rewards(self, scores: Scores) -> torch.Tensor:
        """Returns the implicit rewards, beta * (log pi(y|x) - log ref(y|x)), [N]."""
        return self.spec.beta * scores.log_ratios

    def margins(self, scores: Scores) -> torch.Tensor:
        """Returns h, the difference of the implicit rewards."""
        return of_pairs(self.rewards(scores), scores)
