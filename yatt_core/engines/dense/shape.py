"""The models that the fast path covers: dense Llama, Qwen2 and Qwen3 of transformers, with plain causal attention.

Consumes a transformers module; produces its sizes, or the reason why the module itself has to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Model types as named in their configs, and the classes that hold their weights."""


@dataclass(frozen=True, slots=True)
class DenseShape:
    """The sizes that the arithmetic needs in addition to the weights.

    epsilon: added in every norm.
    tied: whether the head is the embedding.
    """

    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    epsilon: float
    tied: bool

    @property
    def rotated(self) -> int:
        """Number of heads that are rotated by position: queries and keys."""
        return self.heads + self.key_value_heads

    @property
    def parts(self) -> list[int]:
        """Number of query, key and value heads, in this order."""
        return [self.heads, self.key_value_heads, self.key_value_heads]

    @property
    def all_heads(self) -> int:
        """Number of query, key and value heads together."""
        return sum(self.parts)


ADAPTED = "its matrices have adapters"


def why_general(model: nn.Module) -> str:
    """Returns the reason why the fast path does not cover a model; empty if it does."""
    config: Any = model.config
    if reason := why_general_config(config):
        return reason
    kind = type(model)
    expected = ARCHITECTURES[config.model_type]
    ours = kind.__name__ == expected and kind.__module__.startswith("transformers.models.")
    if not ours:
        return f"{kind.__name__} is not {expected}"
    adapted = any(".base_layer." in name for name, _ in model.named_parameters())
    return ADAPTED if adapted else ""


def why_general_config(config: Any) -> str:
    """Returns the reason as `why_general` does, for a transformers model with this config."""
    if config.model_type not in ARCHITECTURES:
        return f"{config.model_type} is not one of {', '.join(ARCHITECTURES)}"
    if any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()):
        return "not all of its layers use full attention"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = config.rope_parameters
    if rope["rope_type"] in ("dynamic", "longrope") or (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        return f"its rotary positions ({rope['rope_type']}) depend on more than the position"
    return ""


def shape_of(model: nn.Module) -> DenseShape:
    """Returns the sizes of a model that is covered."""
    config: Any = model.config
    return DenseShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        epsilon=config.rms_norm_eps,
        tied=config.tie_word_embeddings,
    )
