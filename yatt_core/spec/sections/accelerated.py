"""The engines for accelerators: vLLM, Megatron-Core and FSDP2.

Keys have the engines' own names. A count of 0 means as many as fit on the devices.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel

Precision = Literal["bfloat16", "float32"]


class VllmRollout(SpecModel):
    """vLLM: continuous batching over a paged key/value cache (arXiv 2309.06180).

    It runs in an environment of its own; docs/vllm.md says how to make one.
    """

    kind: Literal["vllm"] = "vllm"
    instances: NonNegativeInt = 0
    """Engines in the pool. 0 works for `yatt plan` only and means as many as fit on the devices; for a judge it
    must be 0, because a judge runs on every device of the pool."""
    environment: Annotated[str | None, Names("code")] = None
    """Folder of the Python environment in which vLLM is installed, the same on each node. `null`: `engines/vllm` in YATT's
    own environment if that exists, else YATT's own."""
    tensor_parallel_size: PositiveInt = 1
    """Devices of one node that share each layer of an engine; must divide the model's number of attention heads."""
    pipeline_parallel_size: PositiveInt = 1
    """Pipeline stages that the layers of an engine are divided into, each on `tensor_parallel_size` devices of one node.
    The stages of the policy's engine are on several nodes if no node can hold all of them."""
    dtype: Precision = "bfloat16"
    """Precision of weights and computation."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Precision of the key/value cache; `auto`: the same as the weights."""
    gpu_memory_utilization: PositiveFloat = Field(default=0.9, le=1.0)
    """Fraction of a GPU's memory that an active engine may use; the key/value cache takes what weights and
    activations leave free."""
    kv_cache_memory_bytes: PositiveInt | None = None
    """Size of the key/value cache. `null`: the free memory on a GPU; on a CPU, enough for `max_num_seqs` sequences
    of maximum length."""
    max_num_seqs: PositiveInt = 256
    """Maximum number of sequences that an engine decodes at once."""
    max_num_batched_tokens: PositiveInt = 8192
    """Maximum number of tokens in a step: those of the prompts that it reads, and one of each sequence that it decodes. At least
    `max_num_seqs`. On processors, where prompts are read whole, also at least the tokens that a prompt with its response may
    have, which for a judge are the positions of its model."""
    enable_prefix_caching: bool = True
    """Whether the samples of a group share the keys and values of their prompt."""
    in_flight_update: Literal["keep_cache", "recompute"] = "keep_cache"
    """How responses in progress continue when new weights arrive: with the keys and values computed from the old
    weights, or with recomputed ones. The weight version is recorded for each token."""

    @property
    def devices(self) -> int:
        """Number of devices of an engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def continuous(self) -> bool:
        """True: sequences enter and leave while others are being decoded."""
        return True

    @property
    def sequence_limit(self) -> int:
        """Maximum number of sequences that the dispatcher sends to the engine at once."""
        return self.max_num_seqs


class MegatronTrainer(SpecModel):
    """Megatron-Core: tensor, pipeline and data parallelism (arXiv 1909.08053, 2104.04473)."""

    kind: Literal["megatron"] = "megatron"
    tensor_model_parallel_size: PositiveInt = 1
    """Devices that share each layer; must divide the model's numbers of attention heads and key/value heads."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Pipeline stages; must divide the model's number of layers."""
    data_parallel_size: NonNegativeInt = 0
    """Replicas of the model, each of which learns from its share of the batch. 0 works for `yatt plan` only and
    means as many as fit on the devices."""
    sequence_parallel: bool = True
    """Whether activations that tensor parallelism would replicate on every device are sharded by tokens (arXiv
    2205.05198)."""
    use_distributed_optimizer: bool = True
    """Whether the optimizer state is sharded over the replicas (arXiv 1910.02054, stage 1)."""
    optimizer_cpu_offload: bool = False
    """Whether the optimizer state is kept and updated in host memory. Works for `yatt plan` only; training does
    not support it yet."""
    recompute_granularity: Literal["none", "full"] = "none"
    """`full`: only the input of each layer is kept; the rest is recomputed in the backward pass (arXiv 1604.06174)."""
    dtype: Precision = "bfloat16"
    """Precision of weights and computation; gradients, master weights and moments are float32."""
    micro_batch_tokens: PositiveInt = 16_384
    """Maximum number of tokens in a forward pass."""

    @property
    def ranks(self) -> int:
        """Number of devices; 0 if the cluster determines it."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.data_parallel_size


class Fsdp2Trainer(SpecModel):
    """PyTorch's fully sharded data parallel, version 2 (arXiv 2304.11277)."""

    kind: Literal["fsdp2"] = "fsdp2"
    ranks: NonNegativeInt = 0
    """Devices over which parameters, gradients and optimizer state are sharded. 0 works for `yatt plan` only and
    means all devices."""
    dtype: Precision = "bfloat16"
    """Precision of gathered parameters and computation; the shards are float32."""
    reshard_after_forward: bool = True
    """Whether a layer's gathered parameters are freed after its forward pass."""
    activation_checkpointing: bool = False
    """Whether only the input of each layer is kept and the rest recomputed in the backward pass (arXiv 1604.06174)."""
    cpu_offload: bool = False
    """Whether shards, gradients and optimizer state are kept in host memory."""
    micro_batch_tokens: PositiveInt = 16_384
    """Maximum number of tokens in a forward pass."""
