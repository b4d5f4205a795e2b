"""The workload that draws, with its networks divided over the ranks: no rank holds a whole gradient or whole moments.

Consumes what `drawing.py` does, and produces the same. Each rank samples and learns from its share of the batches, and makes
spare passes if others have more, since a pass needs all ranks. With the same number of ranks, the same bits; with another one,
sums are taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from yatt_core.errors import ConfigurationError
from yatt_core.workloads.contract import RunFacts
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.held_tensors import local
from yatt_core.workloads.diffusion.objectives import LearntBatch
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE
from yatt_core.workloads.diffusion.sharding import shard_network
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, Trajectory, sample
from yatt_core.workloads.diffusion.updates import UpdateFigures

CLIP_EPSILON = 1e-6
"""Keeps the factor of a limited gradient finite, as `clip_grad_norm_` does."""


class ShardedDrawing(ShapeDrawing):
    """Implements `SharesModel` too. All settings are those of `ShapeDrawing`, but the UNet."""

    divided: ClassVar[bool] = True

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        if self._settings.network == "unet":
            raise ConfigurationError(
                "workload.settings.network: unet is not divided over the ranks, as its blocks lie in one another; expected sd3, "
                "flux or qwen_image, or ShapeDrawing as workload.kind"
            )

    def regroup(self) -> None:
        """Divides the networks anew, over the group that the ranks have now, with the tensors that this rank holds."""
        kept = [[local(tensor).clone() for tensor in network.state_dict().values()] for network in self._networks()]
        self._build_networks()
        for network, tensors in zip(self._networks(), kept, strict=True):
            for tensor, own in zip(network.state_dict().values(), tensors, strict=True):
                local(tensor).copy_(own)

    def _arranged(self, network: nn.Module) -> nn.Module:
        """Returns a network that is divided over the ranks."""
        shard_network(network, self._ranks.count)
        return network

    def _in_batches(self, prompts: list[str], seeds: list[int], plan: SamplingPlan, network: nn.Module) -> Trajectory:
        """Samples this rank's batches, and as many spare ones as others have more."""
        rows = self._settings.rows
        behind = self._behind(-(-len(seeds) // rows))
        found = super()._in_batches(prompts, seeds, plan, network)
        spare = self._predictor(network, [PROMPTS[0]] * rows)
        for _ in range(behind):
            sample(spare, self._process, [0] * rows, plan)
        return found

    def _sum_gradients(self, batches: Sequence[LearntBatch], window: range) -> list[UpdateFigures]:
        """Leaves this rank's rows of the gradient with the weights: each pass has summed its own over the ranks."""
        behind = self._behind(len(batches))
        self._network.zero_grad()
        figures = [self._accumulate(batch, batch.share) for batch in batches]
        size = self._settings.batch
        trajectory = Trajectory(
            latents=(torch.zeros(size, *SHAPE),) * (self._settings.steps + 1),
            log_probabilities=torch.zeros(size, len(window)),
            window=window,
        )
        spare = self._learnt(
            prompts=[PROMPTS[0]] * size,
            trajectory=trajectory,
            advantages=torch.zeros(size),
            seeds=(0,) * size,
            share=0.0,
        )
        for _ in range(behind):
            self._accumulate(spare, spare.share)
        return figures

    def _limit_gradient(self) -> float:
        """Limits the gradient's norm over all ranks; returns what it was."""
        gradients = [own.grad for own in self._own_parameters().values() if own.grad is not None]
        squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
        norm = math.sqrt(self._ranks.sum(squares).item())
        for gradient in gradients:
            gradient.mul_(min(1.0, self._settings.max_grad_norm / (norm + CLIP_EPSILON)))
        return norm

    def _own_parameters(self) -> Mapping[str, torch.Tensor]:
        """Returns this rank's rows of the trained weights, with those of the gradient: zeros where no pass came by."""
        found = {}
        for name, weight in self._parameters.items():
            own = local(weight).detach()
            own.grad = torch.zeros_like(own) if weight.grad is None else local(weight.grad)
            found[name] = own
        return found

    def _behind(self, passes: int) -> int:
        """Returns by how many passes another rank has more than this one. Every rank must ask before it makes its own."""
        everyone = self._ranks.gathered({"passes": np.array([passes])})
        return int(max(each["passes"][0] for each in everyone)) - passes
