"""A dense model's weights as the fast path uses them: projections with the same input are fused into one matrix.

Consumes parameters by their Hugging Face names, from anywhere in memory; produces `DenseWeights`. Parameters
that are adjacent in memory become one view, so that writing to a parameter writes to the fused matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_PARTS: Mapping[str, tuple[str, ...]] = {
    "norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "query_norm": ("self_attn.q_norm.weight",),
    "key_norm": ("self_attn.k_norm.weight",),
    "out": ("self_attn.o_proj.weight",),
    "out_bias": ("self_attn.o_proj.bias",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "gate_up_bias": ("mlp.gate_proj.bias", "mlp.up_proj.bias"),
    "down": ("mlp.down_proj.weight",),
    "down_bias": ("mlp.down_proj.bias",),
}

Take = Callable[[Sequence[str]], torch.Tensor]
"""Names of parameters -> one tensor of their concatenated rows."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; fields that the architecture lacks are None. Matrices are [outputs, inputs]."""

    norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A whole model.

    embedding, head: [vocabulary, width]; the same tensor if they are tied.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def dense_weights(names: Collection[str], layers: int, take: Take) -> DenseWeights:
    """Assembles the weights of a model from its parameters.

    names: names of the model's parameters.
    take: called only with names from `names`.
    """

    def layer(prefix: str) -> LayerWeights:
        found = {part: tuple(prefix + name for name in members) for part, members in _PARTS.items()}
        return LayerWeights(
            **{part: take(full) if full[0] in names else None for part, full in found.items()}  # type: ignore[arg-type]
        )

    embedding = take((EMBEDDING,))
    return DenseWeights(
        embedding=embedding,
        layers=tuple(layer(f"model.layers.{number}.") for number in range(layers)),
        norm=take((NORM,)),
        head=take((HEAD,)) if HEAD in names else embedding,
    )


def fused_names(names: Collection[str], layers: int) -> Iterator[tuple[str, ...]]:
    """Yields the names of parameters to be fused into one tensor; parameters that stay separate are left out."""
    for number in range(layers):
        for members in _PARTS.values():
            full = tuple(f"model.layers.{number}.{name}" for name in members)
            if len(full) > 1 and full[0] in names:
                yield full


def fuse(model: nn.Module, layers: int) -> None:
    """Moves parameters that form one tensor next to each other; names, shapes and values stay the same."""
    parameters = dict(model.named_parameters())
    for names in fused_names(parameters, layers):
        members = [parameters[name] for name in names]
        whole = torch.cat([member.detach() for member in members])
        for member, part in zip(members, torch.split(whole, [len(member) for member in members]), strict=True):
            member.data = part


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates tensors by rows: as a view if they are adjacent in memory, otherwise as a copy."""
    first = tensors[0]
    shape = (sum(len(tensor) for tensor in tensors), *tensors[0].shape[1:])
    ends = [tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in tensors[:-1]]
    storage = first.untyped_storage().data_ptr()
    together = all(
        tensor.is_contiguous() and tensor.untyped_storage().data_ptr() == storage and tensor.data_ptr() == end
        for tensor, end in zip(tensors[1:], ends, strict=True)
    )
    if first.is_contiguous() and together:
        return first.detach().as_strided(shape, first.new_empty(shape, device="meta").stride())
    return torch.cat([tensor.detach() for tensor in tensors])
