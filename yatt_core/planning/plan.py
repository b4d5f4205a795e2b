"""A plan of a run on described devices: what fits, where it is placed, how long it takes, and what was assumed.

Consumes a spec, a cluster, assumptions, and optionally constants fitted to a run. Produces a `RunPlan` of plain
values. Raises `ConfigurationError` for sizes that contradict each other; a plan that does not fit raises nothing, but
reports what is missing and what would fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from yatt_core.checkpoints.interval import checkpoint_interval, overhead
from yatt_core.planning.assumed_lines import assumed_lines
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, DescribedCluster
from yatt_core.planning.files import FilesOnNodes
from yatt_core.planning.memory.demand import Demand, demand_of
from yatt_core.planning.memory.device_memory import lag_obstacle
from yatt_core.planning.memory.remedies import Larger, Settings, larger_that_fits, remedies
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.roles import Roles, check_sizes, roles_of
from yatt_core.planning.time.fitted import FittedConstants
from yatt_core.planning.time.load import Load, load_of
from yatt_core.planning.time.recommend import PlacementOutcome, best, outcomes
from yatt_core.planning.time.times import (
    TrainingTimes,
    devices_for_each_rank,
    engine_constants,
    switch_costs,
    training_times,
)
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout

LONGEST_INTERVAL = 10_000


@dataclass(frozen=True, slots=True)
class Times:
    """The simulated placement modes, the recommended one, and the times outside collect.

    checkpoint_every: recommended iterations between checkpoints.
    checkpoint_overhead: seconds that checkpoints and replay add to each second of training.
    """

    load: Load
    tried: list[PlacementOutcome]
    recommended: PlacementOutcome
    training: TrainingTimes
    checkpoint_every: int
    checkpoint_overhead: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    times: None if it does not fit, and for a run that samples nothing, which leaves nothing to be placed.
    remedies: settings with which it would fit.
    larger: number of nodes on which it would fit.
    """

    roles: Roles
    cluster: DescribedCluster
    demand: Demand
    times: Times | None
    remedies: list[Settings]
    larger: Larger | None
    warnings: list[str]
    assumed: list[str]

    @property
    def files(self) -> FilesOnNodes:
        """What the nodes must share."""
        return FilesOnNodes(self.cluster.nodes, self.roles.spec.storage.url)

    @property
    def fits(self) -> bool:
        """True if the run fits."""
        return self.demand.fits

    @property
    def in_flight(self) -> int | None:
        """The `rollout.in_flight` that keeps the engines full; None unless the run draws slices of a fixed length on engines.

        An iteration ends when as many groups are complete as it learns from; those that are still drawing by then must fill all
        places of the engines.
        """
        spec = self.roles.spec
        if spec.rollout.slice_tokens is None or not self.demand.engines:
            return None
        places = self.demand.instances * self.demand.rollout.sequences
        return spec.data.prompts_per_iteration + math.ceil(places / spec.rollout.samples_per_prompt)


def plan_run(
    spec: RunSpec,
    cluster: DescribedCluster,
    assumed: Assumptions,
    fitted: FittedConstants | None = None,
) -> RunPlan:
    """Returns the plan of a run.

    fitted: constants from a run's telemetry, which replace the constants derived from the cards.
    """
    roles = roles_of(spec, assumed)
    check_sizes(roles, cluster.card_name == CORE)
    demand = demand_of(roles, cluster, assumed)
    simulated = demand.fits and spec.samples_responses
    times = _times(roles=roles, demand=demand, cluster=cluster, assumed=assumed, fitted=fitted) if simulated else None
    return RunPlan(
        roles=roles,
        cluster=cluster,
        demand=demand,
        times=times,
        remedies=[] if demand.fits else remedies(roles, cluster, assumed),
        larger=None if demand.fits else larger_that_fits(roles, cluster, assumed),
        warnings=list(_warnings(roles, demand, cluster)),
        assumed=[*assumed_lines(roles, cluster, assumed, fitted), *(fitted.told if fitted else ())],
    )


def _times(
    roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions, fitted: FittedConstants | None
) -> Times:
    rollout = engine_constants(
        engine=roles.rollout, shape=roles.policy, memory=demand.rollout, card=cluster.card, assumed=assumed
    )
    judge = None
    if roles.judge is not None and demand.judge is not None:
        judge = engine_constants(
            engine=roles.judge.engine, shape=roles.judge.shape, memory=demand.judge, card=cluster.card, assumed=assumed
        )
        judge = judge.model_copy(update={"template_tokens": roles.judge.template_tokens})
    training = training_times(roles, demand, cluster, assumed)
    if fitted is not None:
        rollout = fitted.rollout_constants(rollout)
        training = fitted.training_times(training, devices_for_each_rank(demand, cluster))
    switch = switch_costs(roles, demand, cluster, assumed)
    load = load_of(
        roles=roles,
        demand=demand,
        cluster=cluster,
        rollout=rollout,
        judge=judge,
        switch=switch,
        training=training,
        assumed=assumed,
    )
    tried = outcomes(load, judge is not None)
    chosen = best(tried)
    mean = roles.lengths.mean_prompt + roles.lengths.mean_response
    replay = (training.prepare_s + training.learn_s) * mean * roles.samples / cluster.devices + training.fixed_s
    stall = max(training.checkpoint_s, 1e-6)
    every = checkpoint_interval(stall, assumed.between_failures_s, max(replay, 1e-6), chosen.step_s)
    every = min(every, LONGEST_INTERVAL)
    cost = overhead(
        every=every, stall=stall, between_failures=assumed.between_failures_s, replay=replay, iteration=chosen.step_s
    )
    return Times(
        load=load, tried=tried, recommended=chosen, training=training, checkpoint_every=every, checkpoint_overhead=cost
    )


def _warnings(roles: Roles, demand: Demand, cluster: DescribedCluster) -> Iterator[str]:
    """Yields what works but may not be intended."""
    engines: list[tuple[str, object, EngineMemory | None, int]] = []
    if demand.engines:
        engines.append(("rollout.engine", roles.rollout, demand.rollout, demand.instances))
        judge = roles.judge.engine if roles.judge else None
        engines.append(("the judge's engine", judge, demand.judge, demand.judge_instances))
    for place, engine, memory, instances in engines:
        if not isinstance(engine, VllmRollout) or memory is None:
            continue
        if memory.devices < (each := roles.spec.devices_per_instance):
            yield f"{place}: an engine uses {memory.devices} of the {each} devices that an instance has for its judges or rollout"
        if unused := cluster.devices - demand.apart - instances * memory.devices:
            yield f"{place}: {unused} of {cluster.devices} devices have no engine"
        if memory.sequences < engine.max_num_seqs:
            yield (
                f"{place}.max_num_seqs: the cache has room for about {memory.sequences} average sequences at once, "
                f"not {engine.max_num_seqs}"
            )
    if lag := lag_obstacle(roles.spec, demand, cluster):
        yield f"a start is refused: {lag}"
    if demand.ranks < cluster.devices and not demand.apart:
        yield f"trainer.engine: {cluster.devices - demand.ranks} of {cluster.devices} devices do not train"
    if demand.ranks > cluster.devices and roles.trainer.kind == "torch":
        yield f"trainer.engine.ranks: {demand.ranks} ranks share {cluster.devices} devices"
    steps = roles.samples // roles.spec.mini_batches
    if demand.copies > steps:
        yield f"trainer.engine: {demand.copies} copies share {steps} samples per step; some get none"
    if "torch" in (roles.rollout.kind, roles.trainer.kind) and cluster.card_name != CORE:
        yield f"the torch engines currently run on cores; the figures are estimates for {cluster.card_name}"
