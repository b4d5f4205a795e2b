"""The runner of a model: our own arithmetic where it is covered, else its module of transformers."""

from __future__ import annotations

from torch import nn

from yatt_core.engines.dense.kernels import KernelChoice
from yatt_core.engines.dense.shape import shape_of, why_general
from yatt_core.engines.dense.weights import fuse
from yatt_core.engines.images import ImageReader
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runner import Runner


def open_runner(
    model: nn.Module, reader: ImageReader | None = None, kernels: KernelChoice = "auto", fused: bool = False
) -> Runner:
    """A runner of the model's weights as they are; reader: of a vision-language model's images.

    fused: the model's parameters may be moved, so that its runner follows each change of them; without it a runner is good for as
    long as the weights stay as they are.
    """
    if kernels == "general" or why_general(model):
        return ModuleRunner(model, reader)
    if fused:
        fuse(model, shape_of(model).layers)
    return DenseRunner(model)
