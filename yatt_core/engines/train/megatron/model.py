"""A rank's part of a Megatron-Core model, and the groups to which the rank belongs.

Consumes the process-wide group, a Hugging Face config and the engine's part of the spec; produces the part
with its gradient buffers, and this rank's position. It uses only Megatron-Core's own modules, neither
Transformer Engine nor Apex.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from yatt_core.engines.train.megatron.architecture import Architecture, architecture_of, rope_theta, transformer_config
from yatt_core.engines.train.megatron.attention import CausalAttention
from yatt_core.engines.train.megatron.bridge import HEAD, ParameterMapping, place_of
from yatt_core.engines.train.megatron.cpu import exchanged
from yatt_core.spec.sections.accelerated import MegatronTrainer


@dataclass(frozen=True, slots=True)
class Grid:
    """This rank's position: its tensor-parallel rank, data-parallel copy and pipeline stage, and how many there are of each.

    tensor_group, copy_group, stage_group: Megatron-Core's groups.
    """

    tensor: int
    tensors: int
    copy: int
    copies: int
    stage: int
    stages: int
    tensor_group: Any
    copy_group: Any
    stage_group: Any

    @property
    def speaks(self) -> bool:
        """Whether this rank has the head and is the first of the ranks that share it."""
        return self.tensor == 0 and self.stage == self.stages - 1

    def holders(self, every_tensor: bool, every_copy: bool) -> tuple[int, ...]:
        """Returns the ranks of this stage that hold the same numbers as this one.

        every_tensor: whether all tensor-parallel ranks hold them.
        every_copy: whether all copies hold them.
        """
        tensors = range(self.tensors) if every_tensor else (self.tensor,)
        copies = range(self.copies) if every_copy else (self.copy,)
        first = self.stage * self.copies
        return tuple(tensor + self.tensors * (first + copy) for copy in copies for tensor in tensors)


def make_grid(engine: MegatronTrainer) -> Grid:
    """Creates Megatron-Core's groups, replacing existing ones.

    Tensor-parallel ranks of a layer have adjacent numbers; copies come next, and stages vary slowest.
    """
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size, order="tp-cp-ep-dp-pp"
    )
    # There is no dropout, so the generators are never drawn from; recomputation still requires them.
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    return Grid(
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        tensors=engine.tensor_model_parallel_size,
        copy=parallel_state.get_data_parallel_rank(),
        copies=parallel_state.get_data_parallel_world_size(),
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        stages=engine.pipeline_model_parallel_size,
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        copy_group=parallel_state.get_data_parallel_group(),
        stage_group=parallel_state.get_pipeline_model_parallel_group(),
    )


class RmsNorm(nn.RMSNorm):
    """Torch's norm, marked for sequence parallelism.

    Megatron-Core's own wrapper refuses sequence parallelism, although the mark is all it needs.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class ModelPart:
    """This rank's part of the model.

    wrapped: the module in Megatron-Core's gradient buffers.
    first_layer: number of the stage's first layer.
    """

    module: nn.Module
    wrapped: Any
    settings: Any
    shape: Architecture
    first_layer: int
    longest: int

    def places(self) -> Iterator[tuple[str, nn.Parameter, ParameterMapping]]:
        """Yields the parameters with their places in the model."""
        for name, parameter in self.module.named_parameters():
            yield name, parameter, place_of(name, self.first_layer)

    def head(self) -> torch.Tensor:
        """Returns this rank's rows of the output weight, [own part of the vocabulary, width]; last stage only."""
        module: Any = self.module
        weight: torch.Tensor = (
            module.shared_embedding_or_output_weight() if self.shape.tied else module.output_layer.weight
        )
        return weight

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yields Megatron-Core's gradient buffers, which it zeroes before each update."""
        yield from (buffer.grad_data for buffer in [*self.wrapped.buffers, *self.wrapped.expert_parallel_buffers])

    def repeats(self, place: ParameterMapping) -> bool:
        """Returns True if a parameter is a second copy of another stage's: the head of tied embeddings."""
        return self.shape.tied and place.names == (HEAD,)


def build_part(config: Any, engine: MegatronTrainer, grid: Grid, device: torch.device) -> ModelPart:
    """Builds the rank's part, whose weights and gradients are undefined until they are loaded and cleared.

    Raises `ConfigurationError` if the model cannot be divided this way.
    """
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    shape = architecture_of(config, engine)
    settings = transformer_config(config, engine, device.type == "cuda")
    layer = get_gpt_layer_local_spec(qk_layernorm=settings.qk_layernorm, normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RmsNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = CausalAttention
    if settings.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    layers = shape.layers // grid.stages

    class Body(GPTModel):  # type: ignore[misc]
        """The model without the product with the output weight, which the passes compute chunk by chunk."""

        def _postprocess(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
            return hidden_states

    module = Body(
        settings,
        TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=RmsNorm),
        vocab_size=shape.padded_vocabulary(grid.tensors),
        max_sequence_length=config.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=rope_theta(config),
        pre_process=grid.stage == 0,
        post_process=grid.stage == grid.stages - 1,
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied,
    ).to(device)
    buffers = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=engine.use_distributed_optimizer,
        check_for_nan_in_grad=False,
    )
    settings.finalize_model_grads_func = finalize_model_grads
    first_layer = grid.stage * layers
    _mark_shards(module, first_layer)
    # Its buffers are not filled with zeros: weights are loaded, and gradients cleared, before they are read. On cores,
    # gradients thus take no memory before the first update.
    with exchanged(torch, "zeros", torch.empty):
        wrapped = DistributedDataParallel(settings, buffers, module)
    return ModelPart(
        module=module,
        wrapped=wrapped,
        settings=settings,
        shape=shape,
        first_layer=first_layer,
        longest=config.max_position_embeddings,
    )


def _mark_shards(module: nn.Module, first_layer: int) -> None:
    """Marks the parameters that tensor parallelism divides; Megatron-Core's initialisation, which is off, would do so.

    The norm of the gradients counts a parameter without the mark on one rank only.
    """
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes

    for name, parameter in module.named_parameters():
        if (cut := place_of(name, first_layer).cut) != "whole":
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
            parameter.partition_dim = int(cut == "columns")  # type: ignore[attr-defined]
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
