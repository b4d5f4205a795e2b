"""Supervised training of a diffusion model on images with captions: what a policy begins with.

Consumes a network, a process and a way to draw batches. Produces the network with trained weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from yatt_core.workloads.contract import advanced
from yatt_core.workloads.diffusion.conditions import WordTable
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess

Draw = Callable[[int, torch.Generator], tuple[torch.Tensor, list[str]]]
"""Draws a number of images, [B, ...], and their captions."""
DrawTimes = Callable[[int, torch.Generator], torch.Tensor]
"""Draws times of a process, [B], float64."""

FEWEST = 10
"""So many steps have none in which the learning rate could rise."""


@dataclass(frozen=True, slots=True)
class PretrainingSettings:
    """How a network is pre-trained: AdamW without weight decay, whose rate rises for a tenth of the steps and then falls.

    steps: more than 10, so that there is a step in which it rises. Raises `ValueError` for fewer.
    rate: the largest learning rate.
    clip: the largest norm of a gradient.
    """

    steps: int
    batch: int = 64
    rate: float = 2e-3
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Checks the steps."""
        if self.steps <= FEWEST:
            raise ValueError(f"pretraining: {self.steps} steps are too few; expected more than {FEWEST}")


def logit_normal_times(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws times of a flow, [B], float64: the logistic function of normal numbers (SD3, arXiv 2403.03206)."""
    return torch.randn(count, generator=generator).sigmoid().double()


def uniform_times(process: SamplingProcess) -> DrawTimes:
    """Returns what draws uniform times of a process, as networks that predict noise are trained (DDPM, arXiv 2006.11239)."""

    def drawn(count: int, generator: torch.Generator) -> torch.Tensor:
        return process.at(torch.rand(count, generator=generator, dtype=torch.float64))

    return drawn


def pretrain(
    network: nn.Module,
    process: SamplingProcess,
    words: WordTable,
    *,
    draw: Draw,
    draw_times: DrawTimes,
    settings: PretrainingSettings,
    generator: torch.Generator,
    guidance: float | None = None,
) -> list[float]:
    """Trains the network in place on the mean squared error of its predictions; returns the losses of all steps.

    guidance: what a network with an embedding for it is told.
    """
    optimizer = torch.optim.AdamW(network.parameters(), settings.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=settings.steps, pct_start=0.1)
    losses = []
    for _ in range(settings.steps):
        images, captions = draw(settings.batch, generator)
        times = draw_times(settings.batch, generator)
        noise = torch.randn(images.shape, generator=generator)
        predict = Predictor(network, words.encode(captions).guided(guidance))
        prediction = predict(process.noised(images, noise, times), process.model_times(times))
        loss = (prediction - process.target(images, noise)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        advanced()
    return losses
