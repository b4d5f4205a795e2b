"""What a trainer holds on a device: lasting state, and what each stage needs in addition.

Consumes the engine's section of the spec, the model's shape and the largest micro-batch; produces
`TrainerMemory`. The torch trainer is counted as its code allocates: float32 parameters, gradients and moments in
flat buffers, on every rank. Megatron-Core keeps bfloat16 weights, float32 gradients and twelve bytes of optimizer
state per parameter, divided among the copies if the optimizer is distributed (arXiv 1910.02054, 2205.05198);
FSDP2 shards all three (arXiv 2304.11277).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from yatt_core.planning.account import NOTHING, Bytes
from yatt_core.planning.memory.activations import (
    FLOAT,
    MicroBatchShape,
    element_bytes,
    head_gradients,
    sharded_head,
    sharded_input,
    sharded_layer,
    torch_forward,
    torch_training,
)
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer

MOMENTS = 2
GATHERED = 2
"""Layers whose parameters FSDP2 has gathered at once: the one being computed, and the next."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory on the fullest device.

    lasting: state kept from step to step.
    host: the part of the lasting state that is in host memory during training.
    prepare, learn, sync: additional memory in these stages.
    reference, teachers: the frozen policy and the teachers; empty if there are none.
    critic: the critic's lasting state on the device.
    sleeps: whether the lasting state is on the host in `collect`.
    """

    lasting: Bytes
    host: Bytes
    prepare: Bytes
    learn: Bytes
    sync: Bytes
    reference: Bytes
    sleeps: bool
    teachers: Bytes = NOTHING
    critic: Bytes = NOTHING


def torch_trainer(
    engine: TorchTrainer,
    shape: ModelShape,
    batch: MicroBatchShape,
    sent: int,
    *,
    reference: bool,
    entropy_gradient: bool,
) -> TrainerMemory:
    """Returns the memory of the torch trainer's rank 0.

    From the first checkpoint on, this rank also keeps a checkpoint's buffers, for weights and moments.

    sent: bytes of weights on their way in `sync`.
    """
    flat = shape.parameters * FLOAT
    forward = torch_forward(shape, batch, engine.dtype)
    return TrainerMemory(
        lasting=Bytes(weights=flat, gradients=flat, optimizer=MOMENTS * flat) + _checkpoint(shape, engine.ranks),
        host=Bytes(),
        # The reference temporarily replaces the weights, of which a copy is kept meanwhile.
        prepare=Bytes(activations=forward, copies=flat if reference else 0),
        learn=Bytes(activations=torch_training(shape, batch, engine.dtype, entropy_gradient)),
        sync=Bytes(copies=sent),
        reference=Bytes(weights=flat if reference else 0),
        sleeps=False,
    )


def megatron_trainer(
    engine: MegatronTrainer, shape: ModelShape, batch: MicroBatchShape, copies: int, *, reference: bool
) -> TrainerMemory:
    """Returns the memory of the first or the last stage, whichever holds more.

    The first stage has the most micro-batches in flight; the last one has the head.

    copies: number of data-parallel copies.
    """
    tensor, stages = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    size = element_bytes(engine.dtype)
    stage_layers = shape.layers / stages
    layers = stage_layers * (shape.layer_matrices / tensor + shape.layer_norms)
    ends = 1 if shape.tied or stages > 1 else 2
    parameters = layers + ends * shape.embedding_parameters / tensor + shape.hidden + shape.tower
    kept = sharded_layer(shape, tensor, engine.sequence_parallel, engine.dtype) * batch.tokens
    if engine.recompute_granularity == "full":
        inputs = sharded_input(shape, tensor, engine.sequence_parallel, engine.dtype) * batch.tokens
        first, last = inputs * stage_layers * stages + kept, inputs * stage_layers + kept
    else:
        first, last = kept * stage_layers * stages, kept * stage_layers
    # One forward, one backward (arXiv 2104.04473): the first stage has as many micro-batches in flight as there are stages.
    head = sharded_head(shape, batch, tensor, engine.dtype)
    activations = round(max(first, last + head + head_gradients(shape, batch, tensor, engine.dtype)))
    # In addition to the weights: a float32 copy, unless they are float32 themselves, and two moments.
    optimizer = round(
        parameters * FLOAT * (MOMENTS + (size < FLOAT)) / (copies if engine.use_distributed_optimizer else 1)
    )
    weights = round(parameters * size)
    forward = round(kept + head)
    on_host = engine.optimizer_cpu_offload
    return TrainerMemory(
        lasting=Bytes(weights=weights, gradients=round(parameters * FLOAT), optimizer=0 if on_host else optimizer),
        host=Bytes(optimizer=optimizer if on_host else 0),
        prepare=Bytes(activations=forward),
        learn=Bytes(activations=activations),
        sync=Bytes(copies=_largest_matrix(shape, tensor, size)),
        reference=Bytes(weights=weights if reference else 0),
        sleeps=True,
    )


def fsdp2_trainer(
    engine: Fsdp2Trainer, shape: ModelShape, batch: MicroBatchShape, ranks: int, *, reference: bool
) -> TrainerMemory:
    """Returns the memory of FSDP2: each layer is gathered when it computes.

    Embedding and head, the root's parameters, stay gathered during the whole pass.
    """
    size = element_bytes(engine.dtype)
    shard = round(shape.parameters * FLOAT / ranks)
    layer = shape.layer_matrices + shape.layer_norms
    root = shape.parameters - shape.layers * layer
    gathered_layers = GATHERED if engine.reshard_after_forward else shape.layers
    gathered = round((gathered_layers * layer + root) * size)
    unreduced = round(max(layer, shape.embedding_parameters) * FLOAT)
    kept = sharded_layer(shape, 1, False, engine.dtype) * batch.tokens
    if engine.activation_checkpointing:
        layers = sharded_input(shape, 1, False, engine.dtype) * batch.tokens * shape.layers + kept
    else:
        layers = kept * shape.layers
    head, of_head = sharded_head(shape, batch, 1, engine.dtype), head_gradients(shape, batch, 1, engine.dtype)
    state = Bytes(weights=shard, gradients=shard, optimizer=MOMENTS * shard)
    return TrainerMemory(
        lasting=Bytes() if engine.cpu_offload else state,
        host=state if engine.cpu_offload else Bytes(),
        prepare=Bytes(activations=round(kept + head), copies=gathered),
        learn=Bytes(activations=round(layers + head), copies=gathered + max(unreduced, of_head)),
        sync=Bytes(copies=_largest_matrix(shape, 1, size)),
        reference=Bytes(weights=round(shape.parameters * size / ranks) if reference else 0),
        sleeps=True,
    )


def with_teacher(
    memory: TrainerMemory, engine: TorchTrainer | Fsdp2Trainer, teacher: ModelShape, batch: MicroBatchShape, ranks: int
) -> TrainerMemory:
    """Adds a frozen teacher, which is whole on every rank or sharded, and scores in `prepare` after the policy."""
    size = element_bytes(engine.dtype)
    if isinstance(engine, TorchTrainer):
        held, besides = teacher.parameters * size, Bytes(activations=torch_forward(teacher, batch, engine.dtype))
    else:
        held = round(teacher.parameters * size / ranks)
        besides = fsdp2_trainer(engine, teacher, batch, ranks, reference=False).prepare
    prepare = max(memory.prepare, besides, key=lambda needed: needed.total)
    return replace(memory, prepare=prepare, teachers=memory.teachers + Bytes(weights=held))


def with_critic(
    memory: TrainerMemory, engine: TorchTrainer | Fsdp2Trainer, critic: ModelShape, batch: MicroBatchShape, ranks: int
) -> TrainerMemory:
    """Adds a critic, which takes turns with the policy: both keep their state, but only the larger pass counts."""
    values = replace(batch, counted=0)
    if isinstance(engine, TorchTrainer):
        own = torch_trainer(engine, critic, values, 0, reference=False, entropy_gradient=False)
    else:
        own = fsdp2_trainer(engine, critic, values, ranks, reference=False)
    return replace(
        memory,
        host=memory.host + own.host,
        prepare=max(memory.prepare, own.prepare, key=lambda needed: needed.total),
        learn=max(memory.learn, own.learn, key=lambda needed: needed.total),
        critic=own.lasting,
    )


def on_cores(
    memory: TrainerMemory, shape: ModelShape, sent: int, ranks: int, critic: ModelShape | None = None
) -> TrainerMemory:
    """Returns the memory of a sharded trainer on cores: nothing is moved to the host, because it is already there.

    Each rank also keeps the buffers for its share of a checkpoint.

    sent: bytes of weights on their way in `sync`.
    """
    lasting, values = memory.lasting + memory.host + _checkpoint(shape, ranks), memory.critic
    if critic is not None:
        values = values + _checkpoint(critic, ranks)
    sync = memory.sync + Bytes(copies=sent)
    return replace(memory, lasting=lasting, host=NOTHING, critic=values, sync=sync, sleeps=False)


def on_card(memory: TrainerMemory, resident: bool) -> TrainerMemory:
    """Returns the memory of the torch trainer on a GPU.

    A checkpoint's buffers are in host memory, and everything else is too while other roles take their turn.

    resident: whether all roles stay on the device.
    """
    copies, of_critic = Bytes(copies=memory.lasting.copies), Bytes(copies=memory.critic.copies)
    return replace(
        memory,
        lasting=replace(memory.lasting, copies=0),
        host=memory.host + copies + of_critic,
        critic=replace(memory.critic, copies=0),
        sleeps=not resident,
    )


def _checkpoint(shape: ModelShape, ranks: int) -> Bytes:
    """Returns a rank's buffers for its share of the weights and moments."""
    return Bytes(copies=round((1 + MOMENTS) * shape.parameters * FLOAT / ranks))


def _largest_matrix(shape: ModelShape, tensor: int, size: int) -> int:
    """Returns the bytes of the largest matrix, counted twice: as gathered to be sent, and as received by an engine."""
    largest = max(shape.embedding_parameters, shape.hidden * shape.intermediate * 2)
    return round(2 * largest * size / tensor)
