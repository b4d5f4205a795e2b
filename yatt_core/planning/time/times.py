"""How long engines and trainer take on a card: the constants of the placement's cost model, training and sync.

Consumes shapes, engines, the cluster and assumed efficiencies; produces `EngineConstants` and `TrainingTimes`. A
decode step reads the weights once and every token of context; prefill and training are compute-bound (arXiv
2211.05102). All seconds are real; a virtual engine's are divided by its clock factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from yatt_core.dispatch.pool import virtual_constants
from yatt_core.engines.rollout.torch.sizes import PREFILL_TOKENS
from yatt_core.placement.workload import EngineConstants, SwitchCosts, TrainingCost
from yatt_core.planning.account import LEARN
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import GB, Card, DescribedCluster
from yatt_core.planning.judges import GenerationEngine
from yatt_core.planning.memory.activations import FLOAT
from yatt_core.planning.memory.demand import Demand
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.memory.transfers import weights_sent
from yatt_core.planning.roles import Roles, own_ranks
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout
from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer

BACKWARD = 2.0
"""Cost of a backward pass in forward passes."""
UPDATE_BYTES = 7 * FLOAT
"""Bytes that an optimizer step moves per parameter.

It reads gradient, master weight and two moments, and writes the last three.
"""
CHECKPOINT_BYTES = 3 * FLOAT
"""Bytes of a checkpoint per parameter: weight and two moments."""
REDUCTIONS = 2
"""All-reduces in a layer's forward pass under tensor parallelism (arXiv 1909.08053)."""


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """The times of an iteration outside collect.

    prepare_s, learn_s: device seconds per token of prompt and response.
    fixed_s: seconds of an iteration's optimizer steps in addition to their passes.
    sync_s: seconds for sending new weights to all engines.
    checkpoint_s: seconds for copying the tensors that a checkpoint holds.
    """

    prepare_s: float
    learn_s: float
    fixed_s: float
    sync_s: float
    checkpoint_s: float

    @property
    def cost(self) -> TrainingCost:
        """The cost of everything after collect, for the simulator."""
        return TrainingCost(fixed_s=self.fixed_s + self.sync_s, device_seconds_per_token=self.prepare_s + self.learn_s)


def engine_constants(
    engine: GenerationEngine, shape: ModelShape, memory: EngineMemory, card: Card, assumed: Assumptions
) -> EngineConstants:
    """Returns the constants of an engine instance on a card; a virtual engine's are in the spec."""
    match engine:
        case VirtualRollout():
            return _by_the_wall(virtual_constants(engine), engine.clock_factor, memory.sequences)
        case TorchRollout():
            return _on_card(shape, memory, card, assumed, layer_s=assumed.torch_step_s)
        case VllmRollout():
            layer_s = REDUCTIONS * assumed.reduce_latency_s * math.log2(engine.tensor_parallel_size)
            return _on_card(shape=shape, memory=memory, card=card, assumed=assumed, layer_s=layer_s).model_copy(
                update={
                    "prefix_cache": engine.enable_prefix_caching,
                    "prefill_budget_tokens": engine.max_num_batched_tokens,
                }
            )


def _by_the_wall(constants: EngineConstants, factor: float, sequences: int) -> EngineConstants:
    """Converts constants on a clock that runs `factor` times faster to real seconds.

    sequences: number of sequences that the engine decodes at once.
    """
    seconds = ("base_s", "per_sequence_s", "per_context_token_s", "per_prompt_token_s")
    real = {name: getattr(constants, name) / factor for name in seconds}
    return constants.model_copy(update={**real, "max_concurrent": sequences})


def _on_card(
    shape: ModelShape, memory: EngineMemory, card: Card, assumed: Assumptions, layer_s: float
) -> EngineConstants:
    """Derives constants from the card's bandwidth and operations.

    layer_s: additional seconds of a decode step per layer.
    """
    bandwidth = card.bandwidth_gb_s * GB * assumed.bandwidth_share
    prefill = shape.forward_flops(0) / (memory.devices * card.flops * assumed.prefill_mfu)
    return EngineConstants(
        base_s=memory.awake.weights / bandwidth + layer_s * shape.layers,
        per_sequence_s=assumed.sequence_share * prefill,
        per_context_token_s=memory.cache_token_bytes / bandwidth,
        per_prompt_token_s=prefill,
        max_concurrent=memory.sequences,
        prefix_cache=True,
        prefill_budget_tokens=PREFILL_TOKENS,
    )


def training_times(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> TrainingTimes:
    """Returns the training times of an iteration."""
    trainer = roles.trainer
    shape = roles.policy
    algorithm = roles.spec.algorithm
    if isinstance(trainer, VirtualTrainer):
        # Its seconds are per response token, whatever the number of devices.
        written = roles.lengths.mean_response / roles.lengths.mean_sample
        each = trainer.seconds_per_token * written * cluster.devices / trainer.clock_factor
        return TrainingTimes(
            prepare_s=0.0,
            learn_s=each,
            fixed_s=trainer.fixed_seconds / trainer.clock_factor,
            sync_s=0.0,
            checkpoint_s=0.0,
        )
    forward = shape.forward_flops(roles.lengths.mean_sample / 2) / (cluster.card.flops * assumed.training_mfu)
    idle = devices_for_each_rank(demand, cluster)
    several = roles.spec.needs_old
    in_reward = algorithm.kl is not None and algorithm.kl.where == "reward"
    passes = (several or in_reward) + roles.spec.scores_reference
    own = algorithm.distillation is not None and algorithm.distillation.privileged is not None
    teaching = (*roles.teachers, *((shape,) if own else ()))
    taught = sum(each.forward_flops(roles.lengths.mean_sample / 2) for each in teaching)
    valued = 0.0 if roles.critic is None else roles.critic.forward_flops(roles.lengths.mean_sample / 2)
    speed = cluster.card.flops * assumed.training_mfu
    prepare = forward * passes + (taught + valued) / speed
    learned = forward + valued / speed
    return TrainingTimes(
        prepare_s=prepare * idle,
        learn_s=learned * (1 + BACKWARD + _recomputes(roles)) * algorithm.epochs * idle * _bubble(roles, demand),
        fixed_s=roles.spec.optimizer_steps_per_iteration * _step_s(roles, demand, cluster, assumed),
        sync_s=_sync_s(roles, demand, cluster),
        checkpoint_s=_checkpoint_s(roles, demand, cluster),
    )


def devices_for_each_rank(demand: Demand, cluster: DescribedCluster) -> float:
    """Returns the number of devices per rank, at least 1.

    Devices without a rank are idle during training, but their seconds count too.
    """
    return cluster.devices / min(demand.ranks, cluster.devices)


def switch_costs(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> SwitchCosts:
    """Returns the costs of switching: copying weights from the host and waking engines; 0 if nothing sleeps.

    For virtual engines, the spec defines the costs.
    """
    if isinstance(roles.rollout, VirtualRollout):
        engine = roles.rollout
        factor = roles.rollout.clock_factor
        return SwitchCosts(
            role_s=engine.switch_seconds / factor, repartition_s=engine.repartition_seconds / factor, train_s=0.0
        )
    host = cluster.card.host_gb_s * GB

    def wakes(memory: EngineMemory) -> float:
        return assumed.wake_fixed_s + memory.awake.weights / host if memory.sleeps else 0.0

    role = max(wakes(memory) for memory in (demand.rollout, demand.judge or demand.rollout))
    train = 0.0
    if demand.rollout.sleeps:
        # The trainer's state moves to the device before learning and back afterwards; then the policy wakes up.
        state = next(row.at(LEARN) for row in demand.roles if row.role == "trainer")
        lasting = state.weights + state.gradients + state.optimizer
        train = 2 * lasting / host + wakes(demand.rollout)
    return SwitchCosts(role_s=role if demand.judge is not None else 0.0, repartition_s=role, train_s=train)


def _bubble(roles: Roles, demand: Demand) -> float:
    """Returns the slowdown of filling and draining a pipeline: 1 + (stages - 1) / micro-batches (arXiv 2104.04473)."""
    stages = getattr(roles.trainer, "pipeline_model_parallel_size", 1)
    samples = roles.samples / roles.spec.mini_batches / demand.copies
    micro_batches = max(1.0, samples * roles.lengths.mean_sample / demand.micro_batch.tokens)
    return float(1.0 + (stages - 1) / micro_batches)


def _recomputes(roles: Roles) -> float:
    trainer = roles.trainer
    full = isinstance(trainer, MegatronTrainer) and trainer.recompute_granularity == "full"
    return float(full or (isinstance(trainer, Fsdp2Trainer) and trainer.activation_checkpointing))


def _step_s(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> float:
    """Returns the seconds of an optimizer step beyond its passes: the gradients' all-reduce and the update itself."""
    card = cluster.card
    trainer = roles.trainer
    parameters = roles.trained_parameters
    bandwidth = card.bandwidth_gb_s * GB
    if isinstance(trainer, TorchTrainer):
        # Every rank has all gradients and updates all weights.
        reduce = 2 * FLOAT * parameters / (card.link_gb_s * GB) * (demand.ranks > 1)
        return reduce + UPDATE_BYTES * parameters / bandwidth
    lane = (card.network_gb_s if cluster.nodes > 1 else card.link_gb_s) * GB
    reduce = 2 * FLOAT * parameters / own_ranks(trainer) / lane * (demand.copies > 1)
    if getattr(trainer, "optimizer_cpu_offload", False) or getattr(trainer, "cpu_offload", False):
        bandwidth = card.host_bandwidth_gb_s * GB
    return assumed.step_fixed_s + reduce + UPDATE_BYTES * parameters / demand.ranks / bandwidth


def _sync_s(roles: Roles, demand: Demand, cluster: DescribedCluster) -> float:
    """Returns the seconds of a weight sync, in which all engines receive at once.

    A node receives each weight once over the network, divided among its devices, which then exchange their parts.
    """
    sent = weights_sent(roles) / GB
    node, device = sync_gb_s(roles, cluster)
    return sent / node + sent / demand.rollout.devices / device


def sync_gb_s(roles: Roles, cluster: DescribedCluster) -> tuple[float, float]:
    """Returns the GB/s at which weights reach a node, infinite if there is only one, and a device."""
    card = cluster.card
    node = card.network_gb_s * cluster.devices_per_node if cluster.nodes > 1 else math.inf
    return node, card.link_gb_s


def _checkpoint_s(roles: Roles, demand: Demand, cluster: DescribedCluster) -> float:
    """Returns the seconds for copying weights and moments aside, to the host if it is separate from the devices.

    The time for writing the files does not count, because training continues meanwhile.
    """
    state = float(CHECKPOINT_BYTES * roles.trained_parameters)
    if roles.trainer.kind in ("megatron", "fsdp2"):
        return state / demand.ranks / (cluster.card.host_gb_s * GB)
    return state / (cluster.card.bandwidth_gb_s * GB)
