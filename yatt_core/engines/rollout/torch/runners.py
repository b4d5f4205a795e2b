"""Chooses a model's runner: our own kernels if they cover the model, otherwise its transformers module."""

from __future__ import annotations

from torch import nn

from yatt_core.engines.dense.kernels import KernelChoice, require_aligned
from yatt_core.engines.dense.shape import shape_of, why_general
from yatt_core.engines.dense.weights import fuse
from yatt_core.engines.images import ImageReader
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runner import Runner


def open_runner(
    model: nn.Module,
    reader: ImageReader | None = None,
    kernels: KernelChoice = "auto",
    fused: bool = False,
    aligned: bool = False,
) -> Runner:
    """Opens a runner on the model's weights.

    reader: reads a vision-language model's images.
    fused: whether the model's parameters may be moved, so that the runner follows every change of them.
        Without it, a runner is valid only as long as the weights do not change.
    aligned: whether tokens have the log-probabilities of an aligned trainer.

    Raises `ConfigurationError` if they cannot.
    """
    if aligned:
        require_aligned(kernels, why_general(model))
    if kernels == "general" or why_general(model):
        return ModuleRunner(model, reader)
    if fused:
        fuse(model, shape_of(model).layers)
    return DenseRunner(model, aligned=aligned)
