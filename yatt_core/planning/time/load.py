"""Turns a spec on described devices into a workload for the placement simulator, so that both share one cost model.

Consumes roles, their memory, the engines' constants and switch costs. Produces a `Scenario`, scaled down until it
can be simulated in seconds, with the same ratio of instances to samples. If rollout and judge engines have different
numbers of devices, a simulated instance has the devices of the larger one, of which the smaller one uses the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.placement.workload import (
    Cluster,
    DeviceGroup,
    EngineConstants,
    Engines,
    LengthDistribution,
    ResponseLengths,
    SampledPrompts,
    Scenario,
    SwitchCosts,
    ToolUse,
)
from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.cluster import DescribedCluster
from yatt_core.planning.memory.demand import Demand
from yatt_core.planning.roles import Roles
from yatt_core.planning.time.times import TrainingTimes
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.placement import LENT, SHARED
from yatt_core.spec.sections.rollout import VirtualRollout

MOST_INSTANCES = 32
MOST_SAMPLES = 2048
"""Limits of the simulation, if the load can be scaled down that far."""
NEAR = 4
"""Maximum factor by which the load may be scaled down further than necessary, to get a divisor of the instances."""
LARGEST_SAMPLES = 100_000
"""Maximum number of simulated samples per iteration, if there are too few instances to scale down further."""
ITERATIONS = 3
NO_JUDGE = EngineConstants(
    base_s=1e-9,
    per_sequence_s=0,
    per_context_token_s=0,
    per_prompt_token_s=0,
    max_concurrent=1_000_000,
    prefix_cache=True,
)
"""Stands for rewards by rules only: nothing takes time after the last rollout."""


@dataclass(frozen=True, slots=True)
class BesideTrainer:
    """How engines generate while the trainer learns (`asynchrony.lag`).

    contends: whether trainer and engines slow each other down on the same devices; those of virtual engines do not.
    lent: number of simulated instances on devices that the trainer lends.
    apart: number of devices of the trainer's own over those of the engines.
    sync_s: seconds for which engines stop to take new weights.
    migrates: whether responses in progress can move to another instance.
    """

    contends: bool
    lent: int
    apart: float
    sync_s: float
    migrates: bool


@dataclass(frozen=True, slots=True)
class Load:
    """A scaled-down load.

    workload: the workload to simulate.
    scale: factor by which it has fewer devices and samples than the real load.
    instances: number of real instances.
    beside: None if engines and trainer work in turn.
    """

    workload: Scenario
    scale: int
    instances: int
    beside: BesideTrainer | None = None


def load_of(
    roles: Roles,
    demand: Demand,
    cluster: DescribedCluster,
    rollout: EngineConstants,
    judge: EngineConstants | None,
    switch: SwitchCosts,
    training: TrainingTimes,
    assumed: Assumptions,
) -> Load:
    """Returns the load of a spec.

    Raises `ConfigurationError` if there are more samples than can be simulated.

    rollout: constants of one engine.
    judge: constants of one engine; None if there are only rules.
    training: times relative to the cluster's devices.
    """
    # Smaller engines use the first devices of their instance.
    each = max(demand.rollout.devices, 0 if demand.judge is None else demand.judge.devices)
    instances = demand.instances
    prompts = roles.spec.data.prompts_per_iteration
    group = roles.spec.rollout.samples_per_prompt
    scale = _scale(instances, prompts, prompts * group)
    if prompts // scale * group > LARGEST_SAMPLES:
        raise ConfigurationError(
            f"data.prompts_per_iteration: {prompts} prompts of {group} samples on {instances} instances are too many to "
            f"simulate; expected at most {LARGEST_SAMPLES // group * scale}"
        )
    # The simulator divides training by the instances' devices; the cluster may have more or fewer.
    counted = instances // scale
    share = counted * scale * each / cluster.devices
    per_token = training.cost.device_seconds_per_token * share
    return Load(
        Scenario(
            name=roles.spec.name,
            seed=roles.spec.seed,
            iterations=ITERATIONS,
            control_period_s=_control_period_s(roles),
            cluster=Cluster(devices_per_instance=each, groups=(DeviceGroup(devices=counted * each),)),
            engines=Engines(rollout=rollout, judge=judge or NO_JUDGE),
            switch=switch,
            training=training.cost.model_copy(update={"device_seconds_per_token": per_token}),
            samples=_samples(roles, max(1, prompts // scale), assumed),
        ),
        scale,
        instances,
        _beside(roles, demand, counted=counted, devices=each * instances, sync_s=training.sync_s),
    )


def _beside(roles: Roles, demand: Demand, counted: int, devices: int, sync_s: float) -> BesideTrainer | None:
    """Returns how engines work beside the trainer; None if they do not, or have no memory for it.

    counted: number of simulated instances.
    devices: of all real instances.
    """
    spec = roles.spec
    if not spec.asynchrony.lag or not (demand.resident or demand.apart):
        return None
    lent = 0
    if spec.placement.trainer == LENT:
        lent = min(counted - 1, max(1, round(demand.ranks * counted / demand.instances)))
    return BesideTrainer(
        contends=spec.placement.trainer == SHARED and not spec.virtual,
        lent=lent,
        apart=demand.apart / devices,
        sync_s=sync_s,
        migrates=roles.rollout.continuous and not isinstance(roles.rollout, VllmRollout),
    )


def _control_period_s(roles: Roles) -> float:
    """Returns the control period in real seconds; for virtual engines, the spec states it on their scaled clock.

    Without a judge, the period is irrelevant because there is nothing to control.
    """
    period = roles.spec.placement.control_seconds
    engine = roles.rollout
    return period / engine.clock_factor if roles.judge and isinstance(engine, VirtualRollout) else period


def _scale(instances: int, prompts: int, samples: int) -> int:
    """Returns a large enough scale that leaves at least one prompt; if possible, a nearby divisor of the instances."""
    wanted = max(-(-instances // MOST_INSTANCES), -(-samples // MOST_SAMPLES))
    most = min(instances, prompts)
    near = range(wanted, min(most, NEAR * wanted) + 1)
    return next((n for n in near if instances % n == 0), min(wanted, most))


def _samples(roles: Roles, prompts: int, assumed: Assumptions) -> SampledPrompts:
    lengths = roles.lengths
    tools = roles.spec.rollout.tools
    response = _cut(lengths.response, lengths.longest_response)
    return SampledPrompts(
        prompts=prompts,
        group=roles.spec.rollout.samples_per_prompt,
        prompt=_cut(lengths.prompt, lengths.longest_prompt),
        response=ResponseLengths(**response.model_dump(), rho=assumed.response_correlation),
        judge=_cut(lengths.judge, lengths.longest_judgement),
        judgements=roles.judge.judgements if roles.judge else 1,
        tools=None
        if tools is None
        else ToolUse(
            max_turns=tools.max_turns, mean_wait_s=assumed.tool_wait_s, output_tokens=tools.max_result_tokens // 2
        ),
    )


def _cut(spread: Spread, longest: int) -> LengthDistribution:
    return LengthDistribution(median=spread.median, sigma=spread.sigma, min=1, max=longest)
