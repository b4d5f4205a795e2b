"""Translates a Hugging Face folder's config to a Megatron-Core config, for dense Llama, Qwen2 and Qwen3.

Consumes the config and the engine's part of the spec; produces sizes and settings, or a `ConfigurationError`
that names what this engine does not support.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.accelerated import MegatronTrainer

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes that determine the layout of a model's tensors.

    groups: number of key/value heads.
    tied: whether input and output share one embedding.
    """

    layers: int
    heads: int
    groups: int
    head_size: int
    vocabulary: int
    tied: bool

    def padded_vocabulary(self, tensor: int) -> int:
        """Returns the number of rows of the embedding, padded so that each of `tensor` ranks gets equally many."""
        return -(-self.vocabulary // tensor) * tensor


def architecture_of(config: Any, engine: MegatronTrainer) -> Architecture:
    """Returns the sizes of a model.

    config: the model's transformers config.

    Raises `ConfigurationError` if the model or its division over ranks is not supported.
    """
    if mistakes := list(_obstacles(config, engine)):
        raise ConfigurationError("\n".join(mistakes))
    return Architecture(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_size=_head_size(config),
        vocabulary=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
    )


def transformer_config(config: Any, engine: MegatronTrainer, fused: bool) -> Any:
    """Returns Megatron-Core's settings.

    fused: whether to compile the activation, and the residual sums, into one kernel each, which needs a GPU. Fusions
        that need Transformer Engine or Apex are always off.
    """
    from megatron.core.transformer.transformer_config import TransformerConfig

    tensor = engine.tensor_model_parallel_size
    stages = engine.pipeline_model_parallel_size
    dtype = torch.bfloat16 if engine.dtype == "bfloat16" else torch.float32
    full = engine.recompute_granularity == "full"
    return TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=_head_size(config),
        ffn_hidden_size=config.intermediate_size,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=stages,
        sequence_parallel=engine.sequence_parallel and tensor > 1,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=config.model_type == "qwen2",
        qk_layernorm=config.model_type == "qwen3",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        recompute_granularity="full" if full else None,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        # Gradients are divided by a token count that the passes report as 1: losses already include the step's denominators.
        calculate_per_token_loss=True,
        variable_seq_lengths=stages > 1,
        # For mixtures of experts, which are not supported here; the default contradicts calculate_per_token_loss.
        moe_token_dispatcher_type="alltoall",
        batch_p2p_sync=False,
        # The weights are read from a folder: memory for them is reserved, and nothing else.
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_activation_fusion=fused,
        bias_dropout_fusion=fused,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def rope_theta(config: Any) -> float:
    """Returns the base of the rotary positions (arXiv 2104.09864)."""
    return float(_rope(config).get("rope_theta", 10_000.0))


def _obstacles(config: Any, engine: MegatronTrainer) -> Iterator[str]:
    kind = "trainer.engine.kind: 'megatron'"
    if config.model_type not in FAMILIES:
        yield f"{kind} trains {', '.join(FAMILIES)}, but the model is {config.model_type!r}; use torch or fsdp2"
        return
    plain = {
        "hidden_act": (config.hidden_act, "silu"),
        "rope_type": (_rope(config).get("rope_type", "default"), "default"),
        "use_sliding_window": (getattr(config, "use_sliding_window", False), False),
        "attention_bias": (getattr(config, "attention_bias", False), False),
        "mlp_bias": (getattr(config, "mlp_bias", False), False),
    }
    for name, (found, wanted) in plain.items():
        if found != wanted:
            yield f"{kind} trains models with {name} {wanted!r}, but this one has {found!r}; use torch or fsdp2"
    tensor = engine.tensor_model_parallel_size
    stages = engine.pipeline_model_parallel_size
    for name, size in (
        ("attention heads", config.num_attention_heads),
        ("key/value heads", config.num_key_value_heads),
    ):
        if size % tensor:
            yield f"trainer.engine.tensor_model_parallel_size: {tensor} does not divide the model's {size} {name}"
    if config.intermediate_size % tensor:
        yield (
            f"trainer.engine.tensor_model_parallel_size: {tensor} does not divide the model's feed-forward width "
            f"{config.intermediate_size}"
        )
    if config.num_hidden_layers % stages:
        yield (
            f"trainer.engine.pipeline_model_parallel_size: {stages} does not divide the model's "
            f"{config.num_hidden_layers} layers"
        )


def _rope(config: Any) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
