"""Shards a transformers model over ranks with torch's second version of fully sharded data parallel (arXiv 2304.11277).

Consumes a model, whole or without weights, and the process-wide group; afterwards each parameter is a `DTensor` of
which this rank holds some rows. A layer is gathered when it computes. Gradients are summed over the ranks and never
averaged: losses use the denominators of the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from yatt_core.errors import ConfigurationError
from yatt_core.sharded_modules import add_gradients, sharded_modules, unsplit_names
from yatt_core.spec.sections.accelerated import Fsdp2Trainer


@dataclass(frozen=True, slots=True)
class Sharding:
    """How models are sharded: by which engine, over how many ranks, and where they compute."""

    engine: Fsdp2Trainer
    ranks: int
    device: torch.device

    @property
    def memory(self) -> torch.device:
        """Where the shards are."""
        return torch.device("cpu") if self.engine.cpu_offload else self.device

    @property
    def computes(self) -> torch.dtype:
        """The type in which layers are gathered and computed."""
        found: torch.dtype = getattr(torch, self.engine.dtype)
        return found


def shard_model(model: nn.Module, how: Sharding) -> None:
    """Shards each layer as a unit of its own, and everything outside the layers as one more unit, the root.

    Raises `ConfigurationError` for a model without layers.
    """
    engine = how.engine
    device = how.device
    mesh = init_device_mesh(device.type, (how.ranks,))
    policy = MixedPrecisionPolicy()
    if how.computes != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=how.computes, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if engine.cpu_offload else OffloadPolicy()
    names = shardable_layers(model)
    for name in names:
        layer: nn.Module = model.get_submodule(name)
        if engine.activation_checkpointing:
            parent, _, own = name.rpartition(".")
            layer = checkpoint_wrapper(layer)
            setattr(model.get_submodule(parent), own, layer)
        again = engine.reshard_after_forward
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    add_gradients(model)


def sharded_memory(model: nn.Module) -> list[torch.Tensor]:
    """Returns this rank's rows of the parameters, and the buffers; frees what the last pass left gathered."""
    for module in sharded_modules(model):
        module.reshard()
    with torch.no_grad():
        return [*(parameter.to_local() for parameter in sharded_parameters(model).values()), *model.buffers()]


def sharded_parameters(model: nn.Module) -> dict[str, DTensor]:
    """Returns the parameters under Hugging Face names; a tied one appears only once."""
    found: dict[str, DTensor] = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name.replace(_CHECKPOINT_PREFIX, "")] = parameter
    return found


def whole(parameter: DTensor, local: torch.Tensor) -> torch.Tensor:
    """Gathers all rows of a tensor that is sharded like a parameter, on the CPU. All ranks must call it.

    local: this rank's rows.
    """
    shared = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return shared.full_tensor().detach().cpu()


def shardable_layers(model: nn.Module) -> list[str]:
    """Returns the names of the submodules that transformers marks as not to be split over devices.

    Raises `ConfigurationError` for a model without layers, or with more than parameters.
    """
    names = unsplit_names(model)
    if not names:
        raise ConfigurationError(
            f"trainer.engine: {type(model).__name__} does not name any layers that fsdp2 could shard"
        )
    if odd := sorted(set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}):
        raise ConfigurationError(
            f"trainer.engine: fsdp2 shards only parameters, but {type(model).__name__} also has {odd[0]}"
        )
    return names
