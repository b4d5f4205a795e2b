"""Low-rank adapters (arXiv 2106.09685) beside matrices of a model, through peft; the matrices themselves stay as they are.

Consumes a model of transformers; afterwards its adapters alone are trained. Weights go out in Hugging Face names, each matrix
with what its adapters add to it, or as the adapters alone, which whoever has the initial model adds up by `with_adapters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import stable_seed
from yatt_core.models.tensor_files import TensorFile
from yatt_core.spec.sections.trainer import LoraSpec

NAME = "default"
FIRST, SECOND = f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"
"""Behind a matrix's name: what its inputs go through, [rank, inputs], and what comes of that, [outputs, rank]."""
BASE, OWN = ".base_layer.", "."

Named = Iterable[tuple[str, torch.Tensor]]


def add_adapters(model: nn.Module, spec: LoraSpec, seed: int) -> None:
    """Puts adapters beside every matrix that `targets` names; they add nothing until they have learnt. The same on all ranks.

    Raises `ConfigurationError` for targets that the model has not.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=spec.rank, lora_alpha=spec.alpha, target_modules=list(spec.targets), lora_dropout=0.0)
    missing = [name for name in spec.targets if not any(own.endswith(f".{name}") for own, _ in model.named_modules())]
    if missing:
        raise ConfigurationError(f"trainer.lora.targets: {type(model).__name__} has no {missing[0]!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed("adapters", seed))
        inject_adapter_in_model(config, model, NAME)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a tensor of a model with adapters is one of them."""
    return name.endswith((FIRST, SECOND))


def share_of(spec: LoraSpec) -> float:
    """How often counts what the adapters add."""
    return spec.alpha / spec.rank


def plain_weights(tensors: Named, share: float) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors without adapters, one after another: each matrix as what it is together with its own.

    tensors: in the model's order, in which adapters come behind their matrix.
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
    """A matrix with what its adapters add, float32."""
    return torch.addmm(matrix.detach().float(), second.detach().float(), first.detach().float(), alpha=share)


def with_adapters(
    folder: Path, adapters: Mapping[str, npt.NDArray[Any]], share: float
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The weights of a model folder together with adapters, float32, one after another.

    Raises `DataError`, behind the last of them, for adapters of another model.
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
