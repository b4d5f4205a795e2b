"""Low-rank adapters (arXiv 2106.09685) on a diffusion network, through peft; the network's own weights stay as they are.

Consumes a network of diffusers. Produces the same network with adapters, which alone are trained; without them, it is the
reference. The factor alpha / rank comes from the run's settings and from no file: what pipelines of diffusers write lacks alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed
from yatt_core.section import SpecModel
from yatt_core.workloads.diffusion.predictors import Predictor

NAME = "default"
"""peft's name of the adapters, which is part of their tensors' names."""
TARGETS = "workload.settings.adapters.targets"
ADAPTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""What gets adapters whose tensors `is_adapter` knows."""
BASE = ".base_layer."
"""What peft adds to the names of an adapted matrix's own tensors."""


class AdapterSettings(SpecModel):
    """Adapters of a network."""

    rank: PositiveInt = 4
    """Rank of the product that is added to a matrix."""
    alpha: PositiveFloat = 8.0
    """The product is multiplied by alpha / rank."""
    targets: tuple[str, ...] = Field(default=("to_q", "to_k", "to_v", "to_out.0"), min_length=1)
    """Ends of the names of the matrices."""


def add_adapters(network: nn.Module, settings: AdapterSettings, seed: int) -> None:
    """Adds adapters to the network in place, of which those alone require gradients; untrained ones add nothing.

    seed: the same one gives the same bits.

    Raises `ConfigurationError` for a target that the network does not have, or that has no matrix.
    """
    _check_targets(network, settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets),
        lora_dropout=0.0,
    )
    inject_adapter_in_model(config, network, NAME)
    # peft draws from torch's own generator, which all threads of a process share: what it drew is drawn again, as it draws it.
    generator = torch.Generator().manual_seed(stable_seed("adapters", seed))
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(is_adapter(name))
        if is_adapter(name) and ".lora_A." in name:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)


def _check_targets(network: nn.Module, targets: tuple[str, ...]) -> None:
    """Raises `ConfigurationError` for a target that names nothing in a network, or something without a matrix."""
    modules = {name: module for name, module in network.named_modules() if name}
    example = next((name for name, module in modules.items() if isinstance(module, nn.Linear)), "to_q")
    expected = f"expected ends of names of its matrices, such as {example.rpartition('.')[2]}"
    for target in targets:
        named = {name: module for name, module in modules.items() if target and f".{name}".endswith(f".{target}")}
        if not named:
            raise ConfigurationError(f"{TARGETS}: {type(network).__name__} has no {target!r}; {expected}")
        for name, module in named.items():
            if not isinstance(module, ADAPTED):
                raise ConfigurationError(
                    f"{TARGETS}: {target!r} is the end of {name}, which is {type(module).__name__} and no matrix; {expected}"
                )


def is_adapter(name: str) -> bool:
    """Returns True for a tensor of an adapter."""
    return name.endswith((f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"))


def name_without(name: str) -> str:
    """Returns what a tensor of the network itself is called without adapters."""
    return name.replace(BASE, ".")


def has_adapters(shapes: Mapping[str, object]) -> bool:
    """Returns True for the tensors of a network with adapters. shapes: by name."""
    return any(is_adapter(name) for name in shapes)


@contextmanager
def without_adapters(network: nn.Module) -> Iterator[None]:
    """Has the network predict as it did before it had adapters."""
    layers = [module for module in network.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class ReferencePredictor(Predictor):
    """Predicts without the network's adapters; has no gradients."""

    def __call__(self, latents: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """See `Predictor`."""
        with without_adapters(self.network), torch.no_grad():
            return Predictor.__call__(self, latents, times)

    def rows(self, chosen: slice | torch.Tensor) -> Predictor:
        """See `Predictor`."""
        return ReferencePredictor(self.network, self.conditions.rows(chosen))
