"""The memory that each role takes on a device in each stage when all devices serve the roles in turn.

Consumes roles, cluster and assumptions. Produces `Demand`: rows by role, totals by stage, and the engines'
capacity. Roles stay resident, caches included, if there is room for all at once; otherwise they sleep while
others work. Cores share their node's memory, so for cores the account covers a node rather than a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from yatt_core.cluster.seating import check_seats, most_ranks, pool_layout
from yatt_core.planning.account import (
    COLLECT,
    JUDGE,
    LEARN,
    NOTHING,
    PREPARE,
    SFT,
    STAGES,
    SYNC,
    Bytes,
    RoleMemory,
    StageTotal,
    stage_totals,
)
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, DescribedCluster
from yatt_core.planning.memory.activations import MicroBatchShape, micro_batch_of
from yatt_core.planning.memory.aligned_attention import with_aligned_passes
from yatt_core.planning.memory.apart import devices_apart, fullest, without_first
from yatt_core.planning.memory.generation import asked_of_judge, asked_of_policy, engine_memory, instances_on
from yatt_core.planning.memory.rollout import EngineMemory, on_turn, reward_model, reward_tokens
from yatt_core.planning.memory.training import (
    TrainerMemory,
    fsdp2_trainer,
    megatron_trainer,
    on_card,
    on_cores,
    torch_trainer,
    with_critic,
    with_teacher,
)
from yatt_core.planning.memory.transfers import (
    OnTheWay,
    bytes_between_updates,
    bytes_sending,
    kept_weights,
    receiving,
    senders,
    sending,
)
from yatt_core.planning.memory.widening import (
    widened_kernels,
    widened_pass,
    with_widened_layer,
    with_widened_passes,
)
from yatt_core.planning.roles import Roles, own_ranks, trainer_ranks
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer


@dataclass(frozen=True, slots=True)
class Shortage:
    """A stage that needs more than is available.

    bytes: the amount missing.
    """

    stage: str
    where: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RoleEngines:
    """The engines of a role.

    own: the stage in which they are awake.
    count: number on all devices.
    generates: False for reward models.
    """

    name: str
    own: str
    memory: EngineMemory
    count: int
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run needs.

    engines: the policy's engines, then the judges' engines; none in a run that samples nothing.
    ranks, copies: number of the trainer's ranks, and of data-parallel copies of the model.
    apart: number of devices that only the trainer uses; 0 if it uses those of the engines.
    micro_batch: the largest micro-batch of the trainer.
    resident: whether all roles stay in memory.
    sleeps: whether the trainer or an engine sleeps in host memory even if there is room for all roles at once.
    roles: the memory of each role, the rows of the printed table.
    totals: use of a single memory, stage by stage.
    owner: what this memory belongs to: a device, or a node if the devices are cores.
    """

    engines: tuple[RoleEngines, ...]
    ranks: int
    apart: int
    copies: int
    micro_batch: MicroBatchShape
    resident: bool
    sleeps: bool
    roles: tuple[RoleMemory, ...]
    totals: tuple[StageTotal, ...]
    owner: Literal["device", "node"]

    @property
    def rollout(self) -> EngineMemory:
        """Memory on the devices of one rollout engine."""
        return self.engines[0].memory

    @property
    def instances(self) -> int:
        """Number of the policy's engines on all devices."""
        return self.engines[0].count

    @property
    def judge(self) -> EngineMemory | None:
        """Memory on the devices of one engine of the judge whose times count."""
        return None if self._judges is None else self._judges.memory

    @property
    def judge_instances(self) -> int:
        """Number of engines on all devices of the judge whose times count."""
        return 0 if self._judges is None else self._judges.count

    @property
    def _judges(self) -> RoleEngines | None:
        return next((engines for engines in self.engines[1:] if engines.generates), None)

    @property
    def fits(self) -> bool:
        """True if every stage fits device and host, and each engine's cache holds a sequence of maximum length."""
        return not self.shortages

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """What exceeds its memory, and by how much; the largest shortage first."""
        found = [Shortage(total.stage, f"a {self.owner}'s memory", total.short) for total in self.totals if total.short]
        found += [
            Shortage(total.stage, "a host's memory", total.host_short) for total in self.totals if total.host_short
        ]
        what = "the engine's share of a device"
        found += [Shortage(each.own, what, each.memory.short) for each in self.engines if each.memory.short]
        return tuple(sorted(found, key=lambda shortage: -shortage.bytes))


def demand_of(roles: Roles, cluster: DescribedCluster, assumed: Assumptions) -> Demand:
    """Returns the demand with all roles resident if that fits, otherwise with roles that take turns.

    Raises `ConfigurationError` if parallel sizes do not match the number of devices.
    """
    resident = _demand(roles, cluster, assumed, resident=True)
    return resident if resident.fits and not resident.sleeps else _demand(roles, cluster, assumed, resident=False)


def _demand(roles: Roles, cluster: DescribedCluster, assumed: Assumptions, resident: bool) -> Demand:
    ranks = trainer_ranks(roles.trainer, cluster.by_node)
    apart = devices_apart(roles, cluster, ranks)
    copies = max(1, ranks // own_ranks(roles.trainer))
    batch = replace(largest_micro_batch(roles, copies), on_cores=cluster.card_name == CORE)
    trainer = trainer_of(roles, batch, ranks, copies)
    if trainer.sleeps and cluster.card_name == CORE:
        trainer = on_cores(trainer, roles.policy, ranks, roles.critic)
    engines = tuple(_engines(roles, cluster, assumed, without_first(cluster.by_node, apart)))
    if cluster.card_name != CORE:
        if trainer.lasting != NOTHING or trainer.host != NOTHING:
            trainer = on_card(memory=trainer, shape=roles.policy, ranks=ranks, resident=resident, critic=roles.critic)
        if not resident:
            engines = tuple(replace(each, memory=on_turn(each.memory)) for each in engines)
    # Copies of what was sent are kept in host memory, which on cores is the only memory.
    kept = kept_weights(roles, ranks)
    on_host = kept if cluster.card_name != CORE else NOTHING
    trainer = replace(trainer, host=trainer.host + on_host, lasting=trainer.lasting + _less(kept, on_host))
    stages = [
        stage
        for stage in (STAGES if engines else (PREPARE, LEARN))
        if (stage != JUDGE or len(engines) > 1) and (stage != SFT or (roles.spec.sft and trainer.probe != NOTHING))
    ]
    by_gpu = _by_gpu(engines, cluster)
    between = bytes_between_updates(roles, by_gpu)
    received = receiving(roles, by_gpu)
    rows = [
        _engine_row(
            engines=each,
            cluster=cluster,
            assumed=assumed,
            resident=resident,
            received=received,
            between=between,
            devices=cluster.memories if cluster.card_name == CORE else cluster.memories - apart,
        )
        for each in engines
    ]
    of_engines = len(rows)
    sent = NOTHING
    if cluster.card_name != CORE:
        way = sending(roles, ranks, by_gpu)
        trainer = replace(trainer, sync=Bytes(copies=way.device))
        sent = Bytes(copies=way.host)
    shares = min(ranks, cluster.memories // cluster.nodes)
    if senders(roles, ranks) == 1:
        sent = Bytes(copies=sent.copies // max(1, shares))
    rows += _trainer_rows(
        trainer=trainer,
        assumed=assumed,
        together=-(-ranks // (apart if apart and cluster.card_name != CORE else cluster.memories)),
        resident=resident,
        sent=sent,
        shares=shares,
    )
    together = [rows[:of_engines], rows[of_engines:]] if apart and cluster.card_name != CORE else [rows]
    totals = fullest([stage_totals(each, stages, cluster.memory, cluster.host_memory) for each in together])
    return Demand(
        engines=engines,
        ranks=ranks,
        apart=apart,
        copies=copies,
        micro_batch=batch,
        resident=resident,
        sleeps=trainer.sleeps or any(each.memory.sleeps for each in engines),
        roles=tuple(rows),
        totals=tuple(totals),
        owner="device" if cluster.memories == cluster.devices else "node",
    )


def _by_gpu(engines: Sequence[RoleEngines], cluster: DescribedCluster) -> bool:
    """Returns True if weights go from GPU to GPU: each of the policy's engines has GPUs of its own (`engines.sync.routes`)."""
    return cluster.card_name != CORE and all(
        each.count * each.memory.devices <= cluster.memories for each in engines[:1]
    )


def _engines(
    roles: Roles, cluster: DescribedCluster, assumed: Assumptions, by_node: Mapping[str, int]
) -> Iterator[RoleEngines]:
    """Yields the policy's engines, then the engines of judges that generate, then the reward models.

    A run that samples nothing has none of them.

    by_node: number of devices for engines, by node.
    """
    if not roles.spec.samples_responses:
        return
    others = _sleepers(roles, assumed)
    memory = engine_memory(
        engine=roles.rollout,
        shape=roles.policy,
        asked=asked_of_policy(roles),
        cluster=cluster,
        assumed=assumed,
        others=others,
    )
    instances = instances_on(by_node, memory.devices, roles.rollout, "rollout.engine")
    pool = pool_layout(roles.spec)
    check_seats(by_node, pool)
    if pool.together > memory.devices:
        # An instance has as many devices as its largest engine, a judge's.
        instances = min(instances, most_ranks(by_node, pool) // pool.together)
    yield RoleEngines("rollout", COLLECT, memory, instances)
    for judge in roles.judges:
        memory = engine_memory(
            engine=judge.engine,
            shape=judge.shape,
            asked=asked_of_judge(roles, judge),
            cluster=cluster,
            assumed=assumed,
            others=others,
        )
        count = instances_on(by_node, memory.devices, judge.engine, f"{judge.place}.engine")
        if isinstance(judge.engine, VllmRollout) and isinstance(roles.rollout, VllmRollout):
            count = instances
        yield RoleEngines("judge" if len(roles.judges) == 1 else judge.name, JUDGE, memory, count)
    for model in roles.reward_models:
        memory = reward_model(model)
        if cluster.card_name == CORE and model.part.dtype == "bfloat16":
            memory = with_widened_layer(memory, model.shape, reward_tokens(model))
        yield RoleEngines(model.part.name, JUDGE, memory, instances, generates=False)


def largest_micro_batch(roles: Roles, copies: int) -> MicroBatchShape:
    """Returns the largest micro-batch that a rank processes in an optimizer step.

    Prompts are assumed to have the median length, and responses the maximum length.
    """
    lengths = roles.lengths
    samples = max(1, roles.samples // roles.spec.mini_batches // copies)
    budget = getattr(roles.trainer, "micro_batch_tokens", lengths.longest_prompt + lengths.longest_response)
    prompt = min(lengths.longest_prompt, round(lengths.prompt.median))
    batch = micro_batch_of(budget, samples, prompt, lengths.longest_response)
    return replace(batch, masked=roles.spec.replays_support)


def _sleepers(roles: Roles, assumed: Assumptions) -> int:
    """Returns the bytes that processes of sleeping roles keep on a device next to an engine that is awake."""
    asleep = 1 + len(roles.judges)
    return asleep * assumed.asleep_runtime


def trainer_of(roles: Roles, batch: MicroBatchShape, ranks: int, copies: int) -> TrainerMemory:
    """Returns the memory of a rank of the policy's trainer, with its critic and teachers.

    batch: its largest micro-batch.
    copies: number of data-parallel copies.
    """
    engine = roles.trainer
    memory = _policy_trainer(roles, batch, ranks, copies)
    if roles.spec.aligned and isinstance(engine, TorchTrainer):
        memory = with_aligned_passes(memory, roles.policy, batch, engine.dtype)
    if isinstance(engine, TorchTrainer | Fsdp2Trainer):
        for teacher in roles.teachers:
            memory = with_teacher(memory=memory, engine=engine, teacher=teacher, batch=batch, ranks=ranks)
    if roles.critic is not None and isinstance(engine, TorchTrainer | Fsdp2Trainer):
        memory = with_critic(memory=memory, engine=engine, critic=roles.critic, batch=batch, ranks=ranks)
    if batch.on_cores and getattr(engine, "dtype", "") == "bfloat16":
        memory = with_widened_passes(memory, *_widened_operands(roles, batch))
    return memory


def _widened_operands(roles: Roles, batch: MicroBatchShape) -> tuple[int, int]:
    """Returns the bytes of widened operands in `prepare` and in `learn`: those of the model that has most of them."""
    tensor = getattr(roles.trainer, "tensor_model_parallel_size", 1)
    learning = [widened_pass(roles.policy, batch, learning=True, tensor=tensor)]
    scoring = [widened_pass(shape, batch, learning=False, tensor=tensor) for shape in (roles.policy, *roles.teachers)]
    if roles.critic is not None:
        values = replace(batch, counted=0)
        learning.append(widened_pass(roles.critic, values, learning=True))
        scoring.append(widened_pass(roles.critic, values, learning=False))
    if isinstance(roles.trainer, TorchTrainer) and roles.trainer.kernels == "auto" and not roles.adapters:
        learning.append(widened_kernels(roles.policy, learning=True))
        scoring.append(widened_kernels(roles.policy, learning=False))
    return max(scoring), max(learning)


def _policy_trainer(roles: Roles, batch: MicroBatchShape, ranks: int, copies: int) -> TrainerMemory:
    engine = roles.trainer
    policy = roles.policy
    sent = bytes_sending(roles, ranks)
    reference = roles.reference
    entropy = roles.spec.algorithm.entropy_in_loss
    adapters = roles.adapters
    match engine:
        case TorchTrainer():
            return torch_trainer(
                engine, policy, batch, sent, reference=reference, entropy_gradient=entropy, adapters=adapters
            )
        case MegatronTrainer():
            return megatron_trainer(
                engine=engine,
                shape=policy,
                batch=batch,
                copies=copies,
                sent=sent,
                reference=reference,
                entropy_gradient=entropy,
            )
        case Fsdp2Trainer():
            return fsdp2_trainer(
                engine=engine,
                shape=policy,
                batch=batch,
                ranks=ranks,
                sent=sent,
                reference=reference,
                entropy_gradient=entropy,
                adapters=adapters,
            )
        case VirtualTrainer():
            return TrainerMemory(
                lasting=NOTHING,
                host=NOTHING,
                prepare=NOTHING,
                learn=NOTHING,
                sync=NOTHING,
                reference=NOTHING,
                sleeps=False,
            )


def _engine_row(
    engines: RoleEngines,
    cluster: DescribedCluster,
    assumed: Assumptions,
    resident: bool,
    received: OnTheWay,
    between: int,
    devices: int,
) -> RoleMemory:
    """Returns the memory of a role's engines in each stage.

    received: what an engine of the policy holds in `sync` of weights on their way to it.
    between: bytes of host memory that it keeps for them in the other stages.
    devices: number of memories that engines are laid out over.

    Engines are awake in their own stage, and the policy's weights are on the device in `sync`; in all other stages
    engines are resident or asleep.
    """
    engine = engines.memory
    own = engines.own
    together = -(-engines.count * engine.devices // devices)
    weights = Bytes(weights=engine.awake.weights)
    stages = dict.fromkeys(STAGES, (engine.resident if resident else engine.asleep) * together)
    stages[own] = engine.awake * together
    # Judges on cores run in the processes of the policy's engines.
    alone = own == COLLECT and engine.awake != NOTHING
    runtime = dict.fromkeys(STAGES, assumed.core_runtime * together if alone else 0)
    if engine.sleeps:
        runtime = {stage: assumed.engine_runtime if stage == own else assumed.asleep_runtime for stage in STAGES}
        if own == COLLECT:
            stages[SYNC] = weights
    host = {stage: weights for stage in STAGES if engine.sleeps and not stages[stage].weights}
    if own == COLLECT:
        # They arrive on the first of an engine's devices.
        stages[SYNC] += Bytes(copies=received.device) * together
        held = stages if cluster.card_name == CORE else host
        for stage, nbytes in {**dict.fromkeys(STAGES, between), SYNC: received.host}.items():
            # An engine of several devices holds its buckets once.
            held[stage] = held.get(stage, NOTHING) + Bytes(copies=nbytes // engine.devices) * together
    shares = min(cluster.memories // cluster.nodes, -(-engines.count * engine.devices // cluster.nodes))
    return RoleMemory(role=engines.name, stages=stages, runtime=runtime, host=host, shares=shares)


def _trainer_rows(
    trainer: TrainerMemory, assumed: Assumptions, together: int, resident: bool, sent: Bytes, shares: int
) -> list[RoleMemory]:
    """Returns the memory of the trainer, and of its critic, reference and teacher.

    sent: weights on their way in `sync` that are in host memory as well.
    shares: number of ranks' devices on the node that has most of them.
    """
    busy = {
        SFT: trainer.learn + trainer.probe, PREPARE: trainer.prepare, LEARN: trainer.learn, SYNC: trainer.sync,
    }  # fmt: skip
    held = dict.fromkeys(STAGES, trainer.lasting)
    if not resident:
        # An offloaded trainer frees these, even if its lasting tensors are kept in host memory all the time.
        held |= dict.fromkeys((COLLECT, JUDGE), replace(trainer.lasting, gradients=0, copies=0))
    runtime = dict.fromkeys(STAGES, 0 if trainer.lasting == NOTHING else assumed.core_runtime * together)
    host = {} if trainer.host == NOTHING else dict.fromkeys(STAGES, trainer.host)
    if trainer.sleeps:
        # It is reloaded completely before `prepare`; gradients are not kept.
        held = dict.fromkeys(STAGES, NOTHING) | dict.fromkeys(busy, trainer.lasting)
        runtime = {stage: assumed.train_runtime if stage in busy else assumed.asleep_runtime for stage in STAGES}
        asleep = replace(trainer.lasting, gradients=0)
        host = {stage: trainer.host + (NOTHING if stage in busy else asleep) for stage in STAGES}
    if sent != NOTHING:
        host[SYNC] = host.get(SYNC, NOTHING) + sent
    stages = {stage: (held[stage] + busy.get(stage, NOTHING)) * together for stage in STAGES}
    rows = [RoleMemory(role="trainer", stages=stages, runtime=runtime, host=host, shares=shares)]
    for role, besides in (("critic", trainer.critic), ("reference", trainer.reference), ("teachers", trainer.teachers)):
        if besides != NOTHING:
            awake = tuple(busy) if trainer.sleeps else STAGES
            resting = {stage: besides for stage in STAGES if stage not in awake}
            rows.append(
                RoleMemory(
                    role=role, stages=dict.fromkeys(awake, besides * together), runtime={}, host=resting, shares=shares
                )
            )
    return rows


def _less(whole: Bytes, part: Bytes) -> Bytes:
    """Returns the part of `whole` that is not in `part`."""
    return Bytes(
        weights=whole.weights - part.weights,
        gradients=whole.gradients - part.gradients,
        optimizer=whole.optimizer - part.optimizer,
        kv_cache=whole.kv_cache - part.kv_cache,
        activations=whole.activations - part.activations,
        copies=max(0, whole.copies - part.copies),
    )
