"""The tensors that a folder of a plain Llama, Qwen2 or Qwen3 model must have, told from its config.json alone.

Consumes the parsed config.json and the shapes of the stored tensors. Produces what is missing or of another shape, as
transformers would find it out only after reading all weights. Needs neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PLAIN_TYPES = frozenset({"llama", "qwen2", "qwen3"})
"""Types of text models whose tensors are known here."""
PREFIX = "model."
HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

Shape = tuple[int, ...]


def is_plain(config: Mapping[str, Any]) -> bool:
    """Returns True for a config of a plain model: of a known type, with sizes, and full attention in all layers."""
    windows = config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ())
    sizes = SIZES if config.get("model_type") == "llama" else (*SIZES, "num_key_value_heads")
    sized = all(type(config.get(name)) is int and config[name] > 0 for name in sizes)
    return config.get("model_type") in PLAIN_TYPES and sized and not windows


def wrong_tensors(config: Mapping[str, Any], stored: Mapping[str, Shape]) -> list[str]:
    """Returns one text for each tensor of a plain model that is missing or has another shape.

    stored: the shapes of the folder's tensors; names may lack the prefix `model.`, as in folders without a head.
    """
    found = []
    for name, wanted in _tensors(config):
        own = stored.get(name, stored.get(name.removeprefix(PREFIX)))
        if own is None:
            found.append(f"{name} is missing")
        elif own != wanted:
            found.append(f"{name} has shape {list(own)} instead of {list(wanted)}")
    return found


def _tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Yields the names and shapes of all tensors but a tied head."""
    hidden: int = config["hidden_size"]
    embedding = (config["vocab_size"], hidden)
    yield f"{PREFIX}{EMBEDDING}", embedding
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer(config):
            yield f"{PREFIX}layers.{layer}.{name}", shape
    yield f"{PREFIX}norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", False):
        yield HEAD, embedding


def _layer(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    kind = config["model_type"]
    hidden = config["hidden_size"]
    width = config["intermediate_size"]
    heads: int = config["num_attention_heads"]
    size: int = config.get("head_dim") or _usual_head(kind, hidden, heads)
    pairs: int = (config.get("num_key_value_heads") or heads) * size
    matrices = {
        "self_attn.q_proj": (heads * size, hidden),
        "self_attn.k_proj": (pairs, hidden),
        "self_attn.v_proj": (pairs, hidden),
        "self_attn.o_proj": (hidden, heads * size),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }
    for name, shape in matrices.items():
        yield f"{name}.weight", shape
        if name in _with_bias(config):
            yield f"{name}.bias", shape[:1]
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if kind == "qwen3":
        norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    for name, length in norms.items():
        yield f"{name}.weight", (length,)


def _usual_head(kind: str, hidden: int, heads: int) -> int:
    """Returns the head's size of a config that names none: transformers' Qwen3 has a default of its own."""
    return 128 if kind == "qwen3" else hidden // heads


def _with_bias(config: Mapping[str, Any]) -> frozenset[str]:
    """Returns the matrices that have a bias."""
    attention = {f"self_attn.{name}_proj" for name in ("q", "k", "v")}
    if config["model_type"] == "qwen2":
        return frozenset(attention)
    found: set[str] = set()
    if config.get("attention_bias"):
        found |= attention | {"self_attn.o_proj"}
    if config["model_type"] == "llama" and config.get("mlp_bias"):
        found |= {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    return frozenset(found)
