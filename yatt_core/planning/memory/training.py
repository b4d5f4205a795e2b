"""What a trainer holds on a device: lasting state, and what each stage needs in addition.

Consumes the engine's section of the spec, the model's shape and the largest micro-batch; produces
`TrainerMemory`. All trainers are counted as their code allocates. The torch trainer has float32 parameters, gradients
and moments in flat buffers, on every rank. Megatron-Core keeps bfloat16 weights, float32 gradients and twelve bytes of
optimizer state per parameter, divided among the copies if the optimizer is distributed (arXiv 1910.02054); FSDP2 shards
all three (arXiv 2304.11277).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from yatt_core.planning.account import NOTHING, Bytes
from yatt_core.planning.memory.activations import (
    DISTRIBUTIONS,
    FLOAT,
    MicroBatchShape,
    element_bytes,
    fsdp2_head,
    fsdp2_kept,
    torch_forward,
    torch_training,
)
from yatt_core.planning.memory.megatron_activations import MegatronActivations
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer

MOMENTS = 2
GATHERED = 3
"""Layers whose parameters FSDP2 has gathered at once: the one being computed, the next, and what that is copied from."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory on the fullest device.

    lasting: state kept from step to step.
    host: the part of the lasting state that is in host memory during training.
    prepare, learn, sync: additional memory in these stages.
    probe: the whole copy of the model with which a rank answers the probe of supervised fine-tuning.
    widens_reference: whether the reference is less precise than in a checkpoint, so that it has to be copied.
    reference, teachers: the frozen policy and the teachers; empty if there are none.
    critic: the critic's lasting state on the device.
    sleeps: whether the lasting state is on the host in `collect`.
    adapters: number of parameters of low-rank adapters, if only those are trained.
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
    probe: Bytes = NOTHING
    widens_reference: bool = False
    adapters: int = 0


def torch_trainer(
    engine: TorchTrainer,
    shape: ModelShape,
    batch: MicroBatchShape,
    sent: int,
    *,
    reference: bool,
    entropy_gradient: bool,
    adapters: int = 0,
) -> TrainerMemory:
    """Returns the memory of the torch trainer's rank 0.

    From the first checkpoint on, this rank also keeps a checkpoint's buffers, for weights and moments.

    sent: bytes of weights on their way in `sync`.
    adapters: number of parameters of low-rank adapters, if only those are trained.
    """
    flat = (adapters or shape.parameters) * FLOAT
    forward = torch_forward(shape, batch, engine.dtype)
    learning = torch_training(shape, batch, engine.dtype, entropy_gradient, frozen=adapters > 0)
    return TrainerMemory(
        lasting=Bytes(weights=(shape.parameters + adapters) * FLOAT, gradients=flat, optimizer=MOMENTS * flat)
        + _weights_and_moments(shape, engine.ranks, adapters),
        host=Bytes(),
        # The reference temporarily replaces the weights, of which a copy is kept meanwhile.
        prepare=Bytes(activations=forward, copies=flat if reference else 0),
        learn=Bytes(activations=learning),
        sync=Bytes(copies=sent),
        reference=Bytes(weights=flat if reference else 0),
        sleeps=False,
        adapters=adapters,
    )


def megatron_trainer(
    engine: MegatronTrainer,
    shape: ModelShape,
    batch: MicroBatchShape,
    copies: int,
    sent: int,
    *,
    reference: bool,
    entropy_gradient: bool,
) -> TrainerMemory:
    """Returns the memory of the first or the last stage, whichever holds more.

    The first stage has the most micro-batches in flight; the last one has the head.

    copies: number of data-parallel copies.
    sent: bytes of weights on their way in `sync`.
    """
    tensor = engine.tensor_model_parallel_size
    stages = engine.pipeline_model_parallel_size
    size = element_bytes(engine.dtype)
    stage_layers = shape.layers / stages
    layers = stage_layers * (shape.layer_matrices / tensor + shape.layer_norms)
    ends = 1 if shape.tied or stages > 1 else 2
    parameters = layers + ends * shape.embedding_parameters / tensor + shape.hidden + shape.tower
    # In addition to the weights: a float32 copy, unless they are float32 themselves, and two moments.
    optimizer = round(
        parameters * FLOAT * (MOMENTS + (size < FLOAT)) / (copies if engine.use_distributed_optimizer else 1)
    )
    weights = round(parameters * size)
    on_host = engine.optimizer_cpu_offload
    activations = MegatronActivations(engine, shape, batch)
    return TrainerMemory(
        lasting=Bytes(weights=weights, gradients=round(parameters * FLOAT), optimizer=0 if on_host else optimizer),
        host=Bytes(optimizer=optimizer if on_host else 0),
        # The reference temporarily replaces the weights, of which a copy is kept meanwhile.
        prepare=Bytes(activations=activations.scoring(), copies=weights if reference else 0),
        learn=Bytes(activations=_megatron_learning(activations, stage_layers, entropy_gradient)),
        sync=Bytes(copies=sent),
        reference=Bytes(weights=weights if reference else 0),
        sleeps=True,
        probe=Bytes(copies=shape.parameters * FLOAT),
        widens_reference=size < FLOAT,
    )


def _megatron_learning(kept: MegatronActivations, layers: float, entropy_gradient: bool) -> int:
    """Returns the activations of a stage's layers, of the stage that holds more.

    One forward, one backward (arXiv 2104.04473): the first stage has as many micro-batches in flight as there are stages.
    """
    stages = kept.engine.pipeline_model_parallel_size
    shape = kept.shape
    if kept.engine.recompute_granularity == "full":
        each = kept.layer_input()
        again = kept.layer()
    else:
        each = kept.layer()
        again = 0.0
    # The gradient of a head that is the embedding stays until the embedding's own is added.
    waiting = shape.embedding_parameters / kept.engine.tensor_model_parallel_size * element_bytes(kept.engine.dtype)
    backward = again + kept.backward() + (waiting if shape.tied and kept.batch.counted else 0)
    return round(max(each * layers * stages + backward, each * layers + max(kept.ends(entropy_gradient), backward)))


def fsdp2_trainer(
    engine: Fsdp2Trainer,
    shape: ModelShape,
    batch: MicroBatchShape,
    ranks: int,
    sent: int,
    *,
    reference: bool,
    entropy_gradient: bool,
    adapters: int = 0,
) -> TrainerMemory:
    """Returns the memory of FSDP2: each layer is gathered when it computes.

    Embedding and head, the root's parameters, stay gathered during the whole pass.

    sent: bytes of weights on their way in `sync`.
    adapters: number of parameters of low-rank adapters, if only those are trained.
    """
    size = element_bytes(engine.dtype)
    shard = round((adapters or shape.parameters) * FLOAT / ranks)
    layer = shape.layer_matrices + shape.layer_norms
    root = shape.parameters - shape.layers * layer
    gathered = round((GATHERED if engine.reshard_after_forward else shape.layers) * layer * size)
    forward = batch.tokens * (3 * shape.hidden + 4 * shape.intermediate) * size
    head = DISTRIBUTIONS * batch.chunk(shape.vocabulary) * shape.vocabulary * FLOAT
    passes = (Bytes(activations=forward, copies=gathered), Bytes(activations=head))
    whole = round((shape.parameters + adapters) * FLOAT / ranks)
    state = Bytes(weights=whole, gradients=shard, optimizer=MOMENTS * shard)
    learning = _fsdp2_learning(
        engine=engine,
        shape=shape,
        batch=batch,
        gathered=gathered,
        entropy_gradient=entropy_gradient,
        frozen=adapters > 0,
    )
    exchanged = Bytes(copies=root * size + (shard if reference else 0))
    return TrainerMemory(
        lasting=Bytes() if engine.cpu_offload else state,
        host=state if engine.cpu_offload else Bytes(),
        prepare=max(passes, key=lambda needed: needed.total) + exchanged,
        learn=learning + Bytes(copies=root * size),
        sync=Bytes(copies=sent),
        reference=Bytes(weights=shard if reference else 0),
        sleeps=True,
        probe=Bytes(copies=shape.parameters * FLOAT),
        adapters=adapters,
    )


def _fsdp2_learning(
    engine: Fsdp2Trainer,
    shape: ModelShape,
    batch: MicroBatchShape,
    gathered: int,
    entropy_gradient: bool,
    *,
    frozen: bool,
) -> Bytes:
    """Returns what an update takes besides the gathered root: at the head, in a layer's backward pass, or at its end.

    Gradients are whole until a unit, a layer or the root, has all of its own; they are reduced in float32.

    gathered: bytes of the gathered layers.
    frozen: whether the model's own parameters have no gradients; those of adapters are too small to count.
    """
    size = element_bytes(engine.dtype)
    trained = not frozen
    layer = shape.layer_matrices + shape.layer_norms
    root = shape.parameters - shape.layers * layer
    of_head = shape.embedding_parameters * size if batch.counted and trained else 0
    kept = fsdp2_kept(shape, batch, engine.dtype, engine.activation_checkpointing)
    backward = batch.tokens * (shape.hidden + shape.intermediate) * size
    all_layers = 0 if engine.reshard_after_forward else gathered
    head = fsdp2_head(shape, batch, engine.dtype, entropy_gradient, frozen=frozen)
    phases = (
        Bytes(activations=kept + head, copies=all_layers),
        Bytes(activations=kept + backward, copies=gathered + of_head + trained * layer * size),
        Bytes(copies=all_layers + (of_head if shape.tied else 0) + trained * root * (size + FLOAT)),
    )
    return max(phases, key=lambda needed: needed.total)


def with_teacher(
    memory: TrainerMemory, engine: TorchTrainer | Fsdp2Trainer, teacher: ModelShape, batch: MicroBatchShape, ranks: int
) -> TrainerMemory:
    """Adds a frozen teacher, which is whole on every rank or sharded, and scores in `prepare` after the policy."""
    size = element_bytes(engine.dtype)
    if isinstance(engine, TorchTrainer):
        held = teacher.parameters * size
        besides = Bytes(activations=torch_forward(teacher, batch, engine.dtype))
    else:
        held = round(teacher.parameters * size / ranks)
        besides = fsdp2_trainer(
            engine=engine, shape=teacher, batch=batch, ranks=ranks, sent=0, reference=False, entropy_gradient=False
        ).prepare
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
        own = fsdp2_trainer(
            engine=engine, shape=critic, batch=values, ranks=ranks, sent=0, reference=False, entropy_gradient=False
        )
    return replace(
        memory,
        host=memory.host + own.host,
        prepare=max(memory.prepare, own.prepare, key=lambda needed: needed.total),
        learn=max(memory.learn, own.learn, key=lambda needed: needed.total),
        critic=own.lasting,
    )


def on_cores(memory: TrainerMemory, shape: ModelShape, ranks: int, critic: ModelShape | None = None) -> TrainerMemory:
    """Returns the memory of a sharded trainer on cores: nothing is moved to the host, because it is already there.

    Each rank also keeps the buffers for its share of a checkpoint.
    """
    lasting = memory.lasting + memory.host + checkpoint_buffers(memory, shape, ranks, on_cores=True)
    values = memory.critic
    if critic is not None:
        values = values + _weights_and_moments(critic, ranks)
    return replace(memory, lasting=lasting, host=NOTHING, critic=values, sleeps=False)


def on_card(
    memory: TrainerMemory, shape: ModelShape, ranks: int, resident: bool, critic: ModelShape | None = None
) -> TrainerMemory:
    """Returns the memory of a trainer on a GPU.

    A checkpoint's buffers are in host memory. The reference, although it never changes, has to be copied there as well.
    The torch trainer moves everything else there too while other roles take their turn, as the sharded ones always do.

    resident: whether all roles stay on the device.
    """
    buffers = checkpoint_buffers(memory, shape, ranks, on_cores=False)
    if critic is not None:
        buffers = buffers + _weights_and_moments(critic, ranks)
    return replace(
        memory,
        lasting=replace(memory.lasting, copies=0),
        host=memory.host + buffers,
        critic=replace(memory.critic, copies=0),
        sleeps=memory.sleeps or not resident,
    )


def checkpoint_buffers(memory: TrainerMemory, shape: ModelShape, ranks: int, *, on_cores: bool) -> Bytes:
    """Returns a rank's buffers for its share of the policy's weights and moments, and of the reference if it is copied."""
    buffers = _weights_and_moments(shape, ranks, memory.adapters)
    if memory.reference == NOTHING or (on_cores and not memory.widens_reference):
        return buffers
    return buffers + Bytes(copies=round((memory.adapters or shape.parameters) * FLOAT / ranks))


def _weights_and_moments(shape: ModelShape, ranks: int, adapters: int = 0) -> Bytes:
    """Returns buffers for weights, with which adapters are merged, for adapters apart, and for the moments of what is trained."""
    trained = adapters or shape.parameters
    return Bytes(copies=round((shape.parameters + adapters + MOMENTS * trained) * FLOAT / ranks))
