"""A plan of a run whose workload is a class of the public contract: what its ranks and samplers hold on described devices.

Consumes a spec and a cluster; the class says what it needs (`StatesNeeds`), from its settings alone. Adds what YATT itself holds:
copies for a checkpoint, buckets of weights on their way, processes. Raises `ConfigurationError` for a class that does not say
it. Seconds are not predicted: `yatt check` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import (
    COLLECT,
    GIB,
    LEARN,
    NOTHING,
    PREPARE,
    SYNC,
    Bytes,
    RoleMemory,
    StageTotal,
    stage_totals,
)
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, GB, DescribedCluster
from yatt_core.planning.files import FilesOnNodes
from yatt_core.planning.memory.demand import Shortage
from yatt_core.planning.memory.transfers import BUCKETS
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.contract import Needs, SamplerNeeds, StatesNeeds
from yatt_core.workloads.finding import called, make_workload, verify_workload

EVALUATE = "evaluate"
STAGES_ALONE = (PREPARE, LEARN, EVALUATE)
STAGES_WITH_SAMPLERS = (COLLECT, PREPARE, LEARN, SYNC, EVALUATE)


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The memories that processes are laid out over.

    on_host: whether processes compute in the memory of their node.
    count: number of memories.
    nodes: number of nodes.
    bytes: of each memory.
    host_bytes: of a node's host memory, where it is another one; otherwise 0.
    """

    on_host: bool
    count: int
    nodes: int
    bytes: int
    host_bytes: int

    @property
    def owner(self) -> str:
        """What a memory belongs to."""
        return "node" if self.on_host else "device"


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """The plan of a run of a class.

    roles: the memory of each role in the fullest memory, the rows of the printed table.
    totals: use of that memory, stage by stage.
    """

    spec: RunSpec
    cluster: DescribedCluster
    needs: Needs
    place: MemoryPlace
    roles: tuple[RoleMemory, ...]
    totals: tuple[StageTotal, ...]
    assumed: tuple[str, ...]

    @property
    def sampler_dtype(self) -> str | None:
        """The type in which samplers hold the weights; None without samplers."""
        return _sampler_dtype(self.spec)

    @property
    def fits(self) -> bool:
        """True if every stage fits."""
        return not self.shortages

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """What exceeds its memory, and by how much; the largest shortage first."""
        found = [Shortage(total.stage, f"a {self.place.owner}'s memory", total.short) for total in self.totals]
        found += [Shortage(total.stage, "a host's memory", total.host_short) for total in self.totals]
        return tuple(sorted((each for each in found if each.bytes), key=lambda shortage: -shortage.bytes))

    @property
    def files(self) -> FilesOnNodes:
        """What the nodes must share."""
        return FilesOnNodes(self.cluster.nodes, self.spec.storage.url)


def plan_workload(spec: RunSpec, cluster: DescribedCluster, assumed: Assumptions) -> WorkloadPlan:
    """Returns the plan of a run; one that does not fit raises nothing.

    Raises `ConfigurationError` for a class that cannot be made or does not say what it needs.
    """
    needs = _stated_needs(spec, cluster)
    place = _place_of(needs, cluster)
    roles = [*_trainer_rows(spec, needs, place, assumed)]
    if needs.sampler is not None:
        roles += _sampler_rows(spec, needs.sampler, place, assumed)
    stages = STAGES_ALONE if needs.sampler is None else STAGES_WITH_SAMPLERS
    return WorkloadPlan(
        spec=spec,
        cluster=cluster,
        needs=needs,
        place=place,
        roles=tuple(roles),
        totals=tuple(stage_totals(roles, stages, place.bytes, place.host_bytes)),
        assumed=(*_assumed_lines(needs, place, cluster, assumed), *needs.assumed),
    )


def _stated_needs(spec: RunSpec, cluster: DescribedCluster) -> Needs:
    verify_workload(spec)
    workload: object = make_workload(spec, device="cpu" if cluster.card_name == CORE else "cuda:0")
    if not isinstance(workload, StatesNeeds):
        raise ConfigurationError(
            f"workload.kind: {spec.workload.title} does not say what it needs, so that nothing can be planned: it lacks the "
            "method needs(ranks, sampler_dtype) of StatesNeeds (see docs/workloads.md); `yatt check` tries it out and says how "
            "large its state is"
        )
    dtype = _sampler_dtype(spec)
    needs = called(spec, workload.needs, spec.trainer.engine.ranks, dtype)
    if not isinstance(needs, Needs) or (needs.sampler is None) != (dtype is None):
        expected = "Needs without a sampler" if dtype is None else "Needs with a sampler"
        raise ConfigurationError(f"workload.kind: {spec.workload.title}: needs returned {needs!r}; expected {expected}")
    return needs


def _sampler_dtype(spec: RunSpec) -> str | None:
    return str(getattr(spec.rollout.engine, "dtype", "float32")) if spec.has.samplers else None


def _place_of(needs: Needs, cluster: DescribedCluster) -> MemoryPlace:
    """Returns where processes hold their tensors. The cores of a node share its memory."""
    if needs.on_device and cluster.card_name != CORE:
        return MemoryPlace(
            on_host=False,
            count=cluster.devices,
            nodes=cluster.nodes,
            bytes=cluster.card.memory,
            host_bytes=cluster.host_memory,
        )
    memory = cluster.memory if cluster.card_name == CORE else cluster.host_memory
    return MemoryPlace(on_host=True, count=cluster.nodes, nodes=cluster.nodes, bytes=memory, host_bytes=0)


def _trainer_rows(spec: RunSpec, needs: Needs, place: MemoryPlace, assumed: Assumptions) -> Iterator[RoleMemory]:
    """Yields the memory of the trainer's ranks, and of frozen models beside them."""
    rank = needs.rank
    ranks = spec.trainer.engine.ranks
    lasting = Bytes(weights=rank.weights, optimizer=rank.optimizer)
    stages = {
        PREPARE: lasting + Bytes(activations=rank.prepare),
        LEARN: lasting + Bytes(gradients=rank.gradients, activations=rank.learn),
        EVALUATE: lasting + Bytes(activations=rank.evaluate),
    }
    # From the first checkpoint on, a rank keeps buffers for its share of the state, always in the host's memory.
    kept = Bytes(copies=-(-needs.state // ranks))
    in_host = dict.fromkeys(stages, kept)
    if needs.sampler is not None:
        sent = Bytes(copies=_buckets(spec, -(-needs.sampler.sent // ranks)))
        stages |= {COLLECT: lasting, SYNC: lasting if place.on_host else lasting + sent}
        in_host |= {COLLECT: kept, SYNC: kept + sent}
    yield from _rows(
        role="trainer",
        processes=ranks,
        stages=stages,
        in_host=in_host,
        frozen=rank.frozen,
        place=place,
        assumed=assumed,
    )


def _sampler_rows(
    spec: RunSpec, sampler: SamplerNeeds, place: MemoryPlace, assumed: Assumptions
) -> Iterator[RoleMemory]:
    """Yields the memory of the samplers, which keep their weights, and of frozen models beside them."""
    weights = Bytes(weights=sampler.weights)
    stages = dict.fromkeys(STAGES_WITH_SAMPLERS, weights)
    stages[COLLECT] = weights + Bytes(activations=sampler.collect)
    received = {SYNC: Bytes(copies=_buckets(spec, sampler.sent))}
    yield from _rows(
        role="sampler",
        processes=spec.engine_instances,
        stages=stages,
        in_host=received,
        frozen=sampler.frozen,
        place=place,
        assumed=assumed,
    )


def _rows(
    role: str,
    processes: int,
    stages: Mapping[str, Bytes],
    in_host: Mapping[str, Bytes],
    frozen: int,
    place: MemoryPlace,
    assumed: Assumptions,
) -> Iterator[RoleMemory]:
    """Yields the memory of a role's processes in the fullest memory, and of their frozen models.

    stages: stage -> what a process holds.
    in_host: stage -> what it has in the host's memory besides.
    """
    together = -(-processes // place.count)
    shares = -(-processes // place.nodes)
    runtime = assumed.core_runtime if place.on_host else assumed.train_runtime
    on_host = {stage: held + in_host.get(stage, NOTHING) for stage, held in stages.items()}
    yield RoleMemory(
        role=role,
        stages={stage: held * together for stage, held in (on_host if place.on_host else stages).items()},
        runtime=dict.fromkeys(stages, runtime * together),
        host={} if place.on_host else in_host,
        shares=shares,
    )
    if frozen:
        held = Bytes(weights=frozen) * together
        yield RoleMemory(role=f"{role}: frozen", stages=dict.fromkeys(stages, held), runtime={}, host={}, shares=shares)


def _buckets(spec: RunSpec, sent: int) -> int:
    """Returns the bytes of the buckets in which weights are sent or arrive. sent: bytes of all that a process sends or gets."""
    return min(sent, BUCKETS * spec.trainer.sync_bucket_bytes)


def _assumed_lines(needs: Needs, place: MemoryPlace, cluster: DescribedCluster, assumed: Assumptions) -> Iterator[str]:
    yield f"{cluster}: {place.bytes / GB:.4g} GB per {place.owner} ({cluster.card.source})"
    runtime = assumed.core_runtime if place.on_host else assumed.train_runtime
    yield f"{runtime / GIB:g} GiB for each process beside tensors"
    if needs.sampler is not None and not place.on_host:
        yield "ranks and samplers share devices, also with placement.mode: split, and samplers keep their weights there"
    yield "seconds are not predicted: `yatt check` measures them"
