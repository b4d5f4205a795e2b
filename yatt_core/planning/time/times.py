"""How long engines and trainer take on a card: the constants of the placement's cost model, training and sync.

Consumes shapes, engines, the cluster and what is assumed of efficiencies; produces `EngineConstants` and `TrainingTimes`. A
decode step reads the weights once and every token of context; prefill and training are bound by operations (arXiv 2211.05102).
Seconds are real ones: those of virtual engines are divided by their clocks' factor.
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
from yatt_core.planning.memory.activations import FLOAT, element_bytes
from yatt_core.planning.memory.demand import Demand
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.roles import Roles, own_ranks
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout
from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer

BACKWARD = 2.0
"""A backward pass in forward passes."""
UPDATE_BYTES = 7 * FLOAT
"""What an optimizer step moves for a parameter: gradient, master weight and two moments read, the latter three written."""
CHECKPOINT_BYTES = 3 * FLOAT
"""What a checkpoint holds of a parameter: weight and two moments."""
REDUCTIONS = 2
"""All-reduces of a layer's forward pass under tensor parallelism (arXiv 1909.08053)."""


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """prepare_s, learn_s: device seconds for each token of prompt and response. fixed_s: of an iteration's optimizer steps.
    sync_s: of new weights' way into all engines; sync_bytes: into each engine. checkpoint_s: of copying what a checkpoint holds.
    """

    prepare_s: float
    learn_s: float
    fixed_s: float
    sync_s: float
    sync_bytes: int
    checkpoint_s: float

    @property
    def cost(self) -> TrainingCost:
        """For the simulator: everything behind collect."""
        return TrainingCost(fixed_s=self.fixed_s + self.sync_s, device_seconds_per_token=self.prepare_s + self.learn_s)


def engine_constants(
    engine: GenerationEngine, shape: ModelShape, memory: EngineMemory, card: Card, assumed: Assumptions
) -> EngineConstants:
    """What an instance of the engine takes, on a card; a virtual one takes what the spec says, on any."""
    match engine:
        case VirtualRollout():
            return _by_the_wall(virtual_constants(engine), engine.clock_factor, memory.sequences)
        case TorchRollout():
            return _on_card(shape, memory, card, assumed, layer_s=assumed.torch_step_s)
        case VllmRollout():
            layer_s = REDUCTIONS * assumed.reduce_latency_s * math.log2(engine.tensor_parallel_size)
            return _on_card(shape, memory, card, assumed, layer_s).model_copy(
                update={
                    "prefix_cache": engine.enable_prefix_caching,
                    "prefill_budget_tokens": engine.max_num_batched_tokens,
                }
            )


def _by_the_wall(constants: EngineConstants, factor: float, sequences: int) -> EngineConstants:
    """Constants on a clock that is so many times faster, in real seconds. sequences: at once."""
    seconds = ("base_s", "per_sequence_s", "per_context_token_s", "per_prompt_token_s")
    real = {name: getattr(constants, name) / factor for name in seconds}
    return constants.model_copy(update={**real, "max_concurrent": sequences})


def _on_card(
    shape: ModelShape, memory: EngineMemory, card: Card, assumed: Assumptions, layer_s: float
) -> EngineConstants:
    """By the card's bandwidth and operations. layer_s: of a decode step besides, for each layer."""
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
    """Of an iteration."""
    trainer, shape, algorithm = roles.trainer, roles.policy, roles.spec.algorithm
    if isinstance(trainer, VirtualTrainer):
        # Its seconds are by response token, however many the devices.
        written = roles.lengths.mean_response / roles.lengths.mean_sample
        each = trainer.seconds_per_token * written * cluster.devices / trainer.clock_factor
        return TrainingTimes(0.0, each, trainer.fixed_seconds / trainer.clock_factor, 0.0, 0, 0.0)
    forward = shape.forward_flops(roles.lengths.mean_sample / 2) / (cluster.card.flops * assumed.training_mfu)
    idle = devices_for_each_rank(demand, cluster)
    several = roles.spec.optimizer_steps_per_iteration > 1
    in_reward = algorithm.kl is not None and algorithm.kl.where == "reward"
    passes = (several or in_reward) + roles.reference
    taught = 0.0 if roles.teacher is None else roles.teacher.forward_flops(roles.lengths.mean_sample / 2)
    valued = 0.0 if roles.critic is None else roles.critic.forward_flops(roles.lengths.mean_sample / 2)
    speed = cluster.card.flops * assumed.training_mfu
    prepare, learnt = forward * passes + (taught + valued) / speed, forward + valued / speed
    sync_bytes = shape.parameters * _width(roles)
    return TrainingTimes(
        prepare_s=prepare * idle,
        learn_s=learnt * (1 + BACKWARD + _recomputes(roles)) * algorithm.epochs * idle * _bubble(roles, demand),
        fixed_s=roles.spec.optimizer_steps_per_iteration * _step_s(roles, demand, cluster, assumed),
        sync_s=_sync_s(demand, cluster, sync_bytes),
        sync_bytes=sync_bytes,
        checkpoint_s=_checkpoint_s(roles, demand, cluster),
    )


def devices_for_each_rank(demand: Demand, cluster: DescribedCluster) -> float:
    """At least 1: devices that have no rank stand still while the others train, and their seconds count too."""
    return cluster.devices / min(demand.ranks, cluster.devices)


def switch_costs(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> SwitchCosts:
    """Weights on their way from the host, and what an engine makes anew; nothing where nothing sleeps. Of virtual engines
    what the spec says.
    """
    if isinstance(roles.rollout, VirtualRollout):
        engine, factor = roles.rollout, roles.rollout.clock_factor
        return SwitchCosts(
            role_s=engine.switch_seconds / factor, repartition_s=engine.repartition_seconds / factor, train_s=0.0
        )
    host = cluster.card.host_gb_s * GB

    def wakes(memory: EngineMemory) -> float:
        return assumed.wake_fixed_s + memory.awake.weights / host if memory.sleeps else 0.0

    role = max(wakes(memory) for memory in (demand.rollout, demand.judge or demand.rollout))
    train = 0.0
    if demand.rollout.sleeps:
        # To the device before learning, back behind it, and the policy awake again.
        state = next(row.at(LEARN) for row in demand.roles if row.role == "trainer")
        lasting = state.weights + state.gradients + state.optimizer
        train = 2 * lasting / host + wakes(demand.rollout)
    return SwitchCosts(role_s=role if demand.judge is not None else 0.0, repartition_s=role, train_s=train)


def _bubble(roles: Roles, demand: Demand) -> float:
    """What filling and draining a pipeline makes of its passes' time: 1 + (stages - 1) / micro-batches (arXiv 2104.04473)."""
    stages = getattr(roles.trainer, "pipeline_model_parallel_size", 1)
    samples = roles.samples / roles.spec.algorithm.mini_batches / demand.copies
    micro_batches = max(1.0, samples * roles.lengths.mean_sample / demand.micro_batch.tokens)
    return float(1.0 + (stages - 1) / micro_batches)


def _recomputes(roles: Roles) -> float:
    trainer = roles.trainer
    full = isinstance(trainer, MegatronTrainer) and trainer.recompute_granularity == "full"
    return float(full or (isinstance(trainer, Fsdp2Trainer) and trainer.activation_checkpointing))


def _width(roles: Roles) -> int:
    """Bytes of a weight on its way: the torch trainer's are float32 whatever the engine makes of them."""
    if isinstance(roles.trainer, TorchTrainer):
        return FLOAT
    return element_bytes(getattr(roles.rollout, "dtype", "float32"))


def _step_s(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> float:
    """An optimizer step besides the passes: gradients' all-reduce over the network, and the update itself."""
    card, trainer, parameters = cluster.card, roles.trainer, roles.trained_parameters
    bandwidth = card.bandwidth_gb_s * GB
    if isinstance(trainer, TorchTrainer):
        # Every rank has all gradients, and updates all weights.
        reduce = 2 * FLOAT * parameters / (card.link_gb_s * GB) * (demand.ranks > 1)
        return reduce + UPDATE_BYTES * parameters / bandwidth
    lane = (card.network_gb_s if cluster.nodes > 1 else card.link_gb_s) * GB
    reduce = 2 * FLOAT * parameters / own_ranks(trainer) / lane * (demand.copies > 1)
    if getattr(trainer, "optimizer_cpu_offload", False) or getattr(trainer, "cpu_offload", False):
        bandwidth = card.host_bandwidth_gb_s * GB
    return assumed.step_fixed_s + reduce + UPDATE_BYTES * parameters / demand.ranks / bandwidth


def _sync_s(demand: Demand, cluster: DescribedCluster, sync_bytes: int) -> float:
    """All engines receive at once; a node's share of each weight comes over the network, once, and is spread inside."""
    card = cluster.card
    lane = card.network_gb_s * cluster.devices_per_node if cluster.nodes > 1 else card.link_gb_s
    each_device = sync_bytes / demand.rollout.devices
    return sync_bytes / (lane * GB) + each_device / (card.link_gb_s * GB)


def _checkpoint_s(roles: Roles, demand: Demand, cluster: DescribedCluster) -> float:
    """Copying weights and moments aside, to the host where there is one; files are written while training goes on."""
    state = float(CHECKPOINT_BYTES * roles.trained_parameters)
    if roles.trainer.kind in ("megatron", "fsdp2"):
        return state / demand.ranks / (cluster.card.host_gb_s * GB)
    return state / (cluster.card.bandwidth_gb_s * GB)
