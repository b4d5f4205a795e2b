"""Loads a model of a Hugging Face folder into shards: no rank reads or holds more than its own rows.

Consumes a folder; produces a sharded model. The model is built without memory, sharded, given memory for this rank's
rows, and these are read from the files. All ranks do the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from yatt_core.engines.adapters import BASE, OWN
from yatt_core.engines.train.fsdp2.sharding import Sharding, shard_model, sharded_parameters
from yatt_core.models.attention_check import check_attention, is_known
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.meta_device import empty_causal_lm, stored_names
from yatt_core.models.tensor_files import TensorFolder
from yatt_core.sharded_modules import sharded_modules
from yatt_core.sharded_rows import own_rows

log = logging.getLogger(__name__)


def load_sharded(
    path: str, dtype: str, how: Sharding, change: Callable[[nn.Module], object] | None = None
) -> nn.Module:
    """Returns the model of a folder, sharded.

    dtype: of the shards.
    change: changes the model before it is sharded; parameters that it adds keep their values.

    A model is read whole by each rank if its folder stores tensors in another form than the model has them, or if its
    attention has to be checked on outputs that `change` takes away. Raises as `load_causal_lm` does.
    """
    model = empty_causal_lm(path, dtype)
    folder = TensorFolder(Path(path))
    names = stored_names(model, folder)
    head = _head(model)
    if change is not None:
        change(model)
    if names is None or not (is_known(model) or _head(model) is head):
        log.warning("%s: %s cannot be read in parts: each rank reads all of it", path, type(model).__name__)
        model = load_causal_lm(path, dtype)
        if change is not None:
            change(model)
        shard_model(model, how)
        return model
    absent = {name.replace(BASE, OWN) for name, parameter in model.named_parameters() if parameter.is_meta}
    shard_model(model, how)
    _give_memory(model, how.memory)
    with torch.no_grad():
        for name, parameter in sharded_parameters(model).items():
            if (plain := name.replace(BASE, OWN)) in absent:
                parameter.to_local().copy_(folder.stored(names[plain])[own_rows(parameter)])
    if not is_known(model):
        check_attention(model, Path(path), how.computes)
        for module in sharded_modules(model):
            module.reshard()
    return model


def _head(model: Any) -> Any:
    return model.get_output_embeddings()


@torch.no_grad()
def _give_memory(model: nn.Module, device: torch.device) -> None:
    """Gives a sharded model memory for the parameters that have none; everything else keeps its values."""
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((module, name))
    kept = {
        name: parameter.to_local().clone()
        for name, parameter in sharded_parameters(model).items()
        if not parameter.is_meta
    }
    model.to_empty(device=device)
    for places in owners.values():
        # Each owner of a tied parameter has got memory of its own.
        (first, own), *others = places
        for module, name in others:
            module._parameters[name] = first._parameters[own]
    for module, name, buffer in buffers:
        module._buffers[name] = buffer
    given = sharded_parameters(model)
    for name, values in kept.items():
        given[name].to_local().copy_(values)
