"""Low-rank adapters (arXiv 2106.09685) on matrices of a model, through peft; the matrices themselves stay unchanged.

Consumes a transformers model; only its adapters are trained afterwards. Weights are sent out under
Hugging Face names: either each matrix merged with its adapters, or the adapters alone, which a holder of the
initial model merges with `with_adapters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from yatt_core.checkpoints.contents import ADAPTER
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import stable_seed
from yatt_core.models.tensor_files import TensorFile
from yatt_core.spec.sections.trainer import LoraSpec

FIRST = f".lora_A.{ADAPTER}.weight"
SECOND = f".lora_B.{ADAPTER}.weight"
"""What follows a matrix's name in its factors' names: the first is [rank, inputs], the second [outputs, rank]."""
BASE = ".base_layer."
OWN = "."

Named = Iterable[tuple[str, torch.Tensor]]


def add_adapters(model: nn.Module, spec: LoraSpec, seed: int) -> None:
    """Adds adapters to every matrix named in `targets`. Untrained adapters add nothing; all ranks get equal adapters.

    Raises `ConfigurationError` for targets that the model does not have.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=spec.rank, lora_alpha=spec.alpha, target_modules=list(spec.targets), lora_dropout=0.0)
    missing = [name for name in spec.targets if not any(own.endswith(f".{name}") for own, _ in model.named_modules())]
    if missing:
        raise ConfigurationError(f"trainer.lora.targets: {type(model).__name__} has no {missing[0]!r}")
    with torch.random.fork_rng(devices=[]), _placed_without_memory(model):
        torch.manual_seed(stable_seed("adapters", seed))
        inject_adapter_in_model(config, model, ADAPTER)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


@contextmanager
def _placed_without_memory(model: nn.Module) -> Iterator[None]:
    """Lends parameters on the meta device a place on the CPU, of a single number.

    peft moves adapters to the device of their matrix; on the meta device they would lose their values.
    """
    owners = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_meta
    ]
    for module, name, parameter in owners:
        module._parameters[name] = nn.Parameter(torch.zeros(1, dtype=parameter.dtype).expand(parameter.shape))
    try:
        yield
    finally:
        for module, name, parameter in owners:
            module._parameters[name] = parameter


def is_adapter(name: str) -> bool:
    """Returns True if a tensor of an adapted model belongs to an adapter."""
    return name.endswith((FIRST, SECOND))


def share_of(spec: LoraSpec) -> float:
    """Returns the factor by which the adapters' product is scaled."""
    return spec.alpha / spec.rank


def plain_weights(tensors: Named, share: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a model's tensors without adapters, one at a time, each matrix merged with its adapters.

    tensors: the model's tensors, in its order: adapters follow their matrix.
    """
    matrix: tuple[str, torch.Tensor] | None = None
    first: torch.Tensor | None = None
    for name, tensor in tensors:
        plain = name.replace(BASE, OWN)
        if BASE in name and name.endswith(".weight"):
            matrix = (plain, tensor)
        elif name.endswith(FIRST):
            first = tensor
        elif name.endswith(SECOND) and matrix is not None and first is not None:
            yield matrix[0], together(matrix[1], first, tensor, share)
        else:
            yield plain, tensor


def together(matrix: torch.Tensor, first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    """Merges a matrix with its adapters, in float32."""
    return torch.addmm(matrix.detach().float(), second.detach().float(), first.detach().float(), alpha=share)


def with_adapters(
    folder: Path, adapters: Mapping[str, npt.NDArray[Any]], share: float
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields the weights of a model folder merged with adapters, in float32, one tensor at a time.

    Raises `DataError`, after the last tensor, if the folder lacks the matrix of an adapter.
    """
    left = set(adapters)
    for path in sorted(folder.glob("*.safetensors")):
        file = TensorFile(path)
        for name in file.shapes:
            tensor = file.rows(name).float()
            owner = name.removesuffix(".weight")
            pair = [f"{owner}{end}" for end in (FIRST, SECOND)]
            if left.issuperset(pair):
                left.difference_update(pair)
                first, second = (torch.tensor(adapters[one]) for one in pair)
                tensor = together(tensor, first, second, share)
            yield name, tensor.numpy()
    if left:
        raise DataError(f"{folder}: has no matrix for the adapter {min(left)}")
