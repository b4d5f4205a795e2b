"""Converts between Hugging Face's and Megatron-Core's tensors: names, and the splits over tensor-parallel ranks.

Pure functions over one parameter at a time, so that weights and moments of any size can be streamed.
Megatron-Core stores queries, keys and values in one matrix, ordered by group of heads, and gate and up
projection in another, the gate above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from yatt_core.engines.train.megatron.architecture import Architecture
from yatt_core.models.tensor_files import Sliceable

Cut = Literal["columns", "whole", "query_key_value", "gate_up", "vocabulary"]
"""How a parameter is split over the tensor-parallel ranks.

vocabulary: by rows, padded with rows of zeros.
"""


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """A Megatron-Core parameter's Hugging Face tensors, in order, and how it is split."""

    names: tuple[str, ...]
    cut: Cut


EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_TOP = {
    "embedding.word_embeddings.weight": ParameterMapping((EMBEDDING,), "vocabulary"),
    "decoder.final_layernorm.weight": ParameterMapping(("model.norm.weight",), "whole"),
    "output_layer.weight": ParameterMapping((HEAD,), "vocabulary"),
}
_LAYER = {
    "input_layernorm.weight": ParameterMapping(("input_layernorm.weight",), "whole"),
    "pre_mlp_layernorm.weight": ParameterMapping(("post_attention_layernorm.weight",), "whole"),
    "self_attention.linear_qkv.weight": ParameterMapping(
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"), "query_key_value"
    ),
    "self_attention.linear_qkv.bias": ParameterMapping(
        ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"), "query_key_value"
    ),
    "self_attention.q_layernorm.weight": ParameterMapping(("self_attn.q_norm.weight",), "whole"),
    "self_attention.k_layernorm.weight": ParameterMapping(("self_attn.k_norm.weight",), "whole"),
    "self_attention.linear_proj.weight": ParameterMapping(("self_attn.o_proj.weight",), "columns"),
    "mlp.linear_fc1.weight": ParameterMapping(("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "mlp.linear_fc2.weight": ParameterMapping(("mlp.down_proj.weight",), "columns"),
}


def place_of(name: str, first_layer: int) -> ParameterMapping:
    """Returns a parameter's place in the model.

    name: the parameter's name in Megatron-Core.
    first_layer: number of the stage's first layer, counted from 0.
    """
    if name in _TOP:
        return _TOP[name]
    _, _, number, rest = name.split(".", 3)
    place = _LAYER[rest]
    return ParameterMapping(tuple(f"model.layers.{first_layer + int(number)}.{own}" for own in place.names), place.cut)


def shard_of(parts: Sequence[Sliceable], cut: Cut, shape: Architecture, rank: int, ranks: int) -> torch.Tensor:
    """Returns a rank's part of a parameter; reads nothing else.

    parts: the Hugging Face tensors, in the place's order.
    """
    first = parts[0]
    match cut:
        case "whole":
            return first[:]
        case "columns":
            return first[:, _share(first.shape[1], rank, ranks)]
        case "gate_up":
            return torch.cat([part[_share(part.shape[0], rank, ranks)] for part in parts])
        case "query_key_value":
            own = [part[_share(part.shape[0], rank, ranks)] for part in parts]
            grouped = [part.reshape(shape.groups // ranks, -1, *part.shape[1:]) for part in own]
            return torch.cat(grouped, 1).flatten(0, 1)
        case "vocabulary":
            rows = _share(shape.padded_vocabulary(ranks), rank, ranks)
            start, stop = (min(row, first.shape[0]) for row in (rows.start, rows.stop))
            known = first[start:stop]
            padding = known.new_zeros((rows.stop - rows.start - len(known), *first.shape[1:]))
            return torch.cat([known, padding]) if len(padding) else known


def _share(size: int, rank: int, ranks: int) -> slice:
    """Returns the positions that a rank has of `size`, which `ranks` divides."""
    own = size // ranks
    return slice(rank * own, (rank + 1) * own)


def whole_of(shards: Sequence[torch.Tensor], cut: Cut, shape: Architecture) -> tuple[torch.Tensor, ...]:
    """Returns a parameter's Hugging Face tensors from the parts of all ranks, in order; inverts `shard_of`."""
    match cut:
        case "whole":
            return (shards[0],)
        case "columns":
            return (torch.cat(list(shards), 1),)
        case "gate_up":
            halves = [shard.chunk(2) for shard in shards]
            return torch.cat([gate for gate, _ in halves]), torch.cat([up for _, up in halves])
        case "query_key_value":
            fused = torch.cat(list(shards))
            grouped = fused.reshape(shape.groups, -1, *fused.shape[1:])
            sizes = [shape.heads // shape.groups * shape.head_size, shape.head_size, shape.head_size]
            queries, keys, values = (part.flatten(0, 1) for part in torch.split(grouped, sizes, 1))
            return queries, keys, values
        case "vocabulary":
            return (torch.cat(list(shards))[: shape.vocabulary],)
