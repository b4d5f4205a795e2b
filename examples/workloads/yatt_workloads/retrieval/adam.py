"""The optimizer of one module, whose moments a checkpoint holds by the names of the parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq")


class NamedAdam:
    """AdamW (arXiv 1711.05101) with a learning rate that is given at each step."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = dict(module.named_parameters())
        self._optimizer = torch.optim.AdamW(self._parameters.values(), weight_decay=decay)
        self.steps = 0
        self._take({})

    def step(self, rate: float) -> None:
        """Takes a step along the gradients, and drops them."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1

    def moments(self) -> dict[str, torch.Tensor]:
        """Returns the moments of all parameters, by moment and parameter."""
        return {
            f"{moment}.{name}": self._optimizer.state[parameter][moment]
            for moment in MOMENTS
            for name, parameter in self._parameters.items()
        }

    def load(self, moments: Mapping[str, torch.Tensor], steps: int) -> None:
        """Takes over moments, which are copied, after so many steps."""
        self.steps = steps
        self._take(moments)

    def _take(self, moments: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            found = {moment: moments.get(f"{moment}.{name}") for moment in MOMENTS}
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self.steps)),
                **{
                    moment: torch.zeros_like(parameter) if values is None else values.to(parameter.device, copy=True)
                    for moment, values in found.items()
                },
            }
