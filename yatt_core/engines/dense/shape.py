"""Which models the fast path covers: the dense Llama, Qwen2 and Qwen3 of transformers, with plain causal attention.

Consumes a module of transformers; produces its sizes, or the reason why the module itself has to be run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Types of models, as their configs name them, and the classes that hold their weights."""


@dataclass(frozen=True, slots=True)
class DenseShape:
    """Sizes that the arithmetic needs besides the weights. epsilon: of all norms. tied: the head is the embedding."""

    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    epsilon: float
    tied: bool

    @property
    def rotated(self) -> int:
        """Heads that carry positions: queries and keys."""
        return self.heads + self.key_value_heads

    @property
    def parts(self) -> list[int]:
        """Heads of queries, keys and values, in this order."""
        return [self.heads, self.key_value_heads, self.key_value_heads]

    @property
    def all_heads(self) -> int:
        """Heads of queries, keys and values together."""
        return sum(self.parts)


ADAPTED = "adapters stand beside its matrices"


def why_general(model: nn.Module) -> str:
    """What keeps a model from the fast path; empty for one that is covered."""
    config: Any = model.config
    if reason := why_general_config(config):
        return reason
    kind, expected = type(model), ARCHITECTURES[config.model_type]
    ours = kind.__name__ == expected and kind.__module__.startswith("transformers.models.")
    if not ours:
        return f"{kind.__name__} is not {expected}"
    adapted = any(".base_layer." in name for name, _ in model.named_parameters())
    return ADAPTED if adapted else ""


def why_general_config(config: Any) -> str:
    """The same for a model of transformers with this config."""
    if config.model_type not in ARCHITECTURES:
        return f"{config.model_type} is none of {', '.join(ARCHITECTURES)}"
    if any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()):
        return "not all of its layers attend to all that came before"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = config.rope_parameters
    if rope["rope_type"] in ("dynamic", "longrope") or (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        return f"its rotary positions ({rope['rope_type']}) depend on more than the position"
    return ""


def shape_of(model: nn.Module) -> DenseShape:
    """The sizes of a model that is covered."""
    config: Any = model.config
    return DenseShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        epsilon=config.rms_norm_eps,
        tied=config.tie_word_embeddings,
    )
