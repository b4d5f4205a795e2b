"""What a run's pool is made of: its instances, what each takes in, and the facts that a placement policy plans with.

Consumes a spec. The first instances are devices, which roll out or judge; behind them stands one for each judge of others,
which is an address and no device.
"""

from __future__ import annotations

from yatt_core.dispatch.queue import Limits
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.fitting import usual_constants
from yatt_core.placement.seen import Setting
from yatt_core.placement.workload import EngineConstants, SwitchCosts
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, VirtualJudge
from yatt_core.spec.roles import device_judges, endpoint_judges
from yatt_core.spec.sections.rollout import VirtualRollout

UNBOUNDED = 1 << 30
"""Sequences of an engine that names no bound."""
LEAST_BASE_S = 1e-9
"""Seconds of a decode step of an engine that is to take none: the cost model divides by them."""
WORK_THREADS = 32
"""Of a real instance that batches continuously: batches that it takes in at once have one each."""


def judge_roles(spec: RunSpec) -> dict[str, str]:
    """The role of the instances that judge, by reward part."""
    here = dict.fromkeys((part.name for part in device_judges(spec)), JUDGE)
    return here | {part.name: _role_of(part) for part in endpoint_judges(spec)}


def instance_speeds(spec: RunSpec) -> list[float]:
    """Of all instances, endpoints last."""
    engine = spec.rollout.engine
    given = engine.speeds if isinstance(engine, VirtualRollout) else ()
    return [*(given or [1.0] * engine.instances), *[1.0] * len(endpoint_judges(spec))]


def instance_roles(spec: RunSpec) -> list[str]:
    """At first."""
    return [ROLLOUT] * spec.rollout.engine.instances + [_role_of(part) for part in endpoint_judges(spec)]


def dispatch_limits(spec: RunSpec) -> dict[str, Limits]:
    """What an instance takes in at once, by role."""
    limits = {ROLLOUT: Limits(), JUDGE: Limits()}
    if (rollout := spec.rollout.engine).continuous:
        batches = None if spec.virtual else WORK_THREADS
        limits[ROLLOUT] = Limits(batches, rollout.sequence_limit)
        limits[JUDGE] = Limits(batches, _most_judgements(spec))
    return limits | {_role_of(part): Limits(None, part.max_concurrent_requests) for part in endpoint_judges(spec)}


def pool_setting(spec: RunSpec) -> Setting:
    """The pool as a placement policy sees it. Constants of engines that tell none are usual ones, until they are fitted."""
    engine, judges = spec.rollout.engine, device_judges(spec)
    speeds = tuple(instance_speeds(spec)[: engine.instances])
    switch = SwitchCosts(role_s=0.0, repartition_s=0.0, train_s=0.0)
    rollout = usual_constants(UNBOUNDED)
    if isinstance(engine, VirtualRollout):
        rollout = virtual_constants(engine)
        switch = SwitchCosts(role_s=engine.switch_seconds, repartition_s=engine.repartition_seconds, train_s=0.0)
    return Setting(
        speeds=speeds,
        rollout=rollout,
        judge=_judge_constants(spec),
        switch=switch,
        control_period_s=spec.placement.control_seconds,
        judgements=sum(part.judgements for part in judges),
        prompts=spec.data.prompts_per_iteration,
        migrates=spec.virtual and engine.continuous,
    )


def constants_known(spec: RunSpec) -> bool:
    """Whether the engines' time constants are given, and need not be fitted."""
    return isinstance(spec.rollout.engine, VirtualRollout) and spec.rollout.engine.continuous


def virtual_constants(engine: VirtualRollout | VirtualJudge) -> EngineConstants:
    """The cost model's constants of a virtual engine; what all sequences of a request share it reads once."""
    return EngineConstants(
        base_s=max(engine.base_seconds, LEAST_BASE_S),
        per_sequence_s=engine.seconds_per_sequence,
        per_context_token_s=engine.seconds_per_context_token,
        per_prompt_token_s=engine.seconds_per_prompt_token,
        max_concurrent=engine.max_num_seqs or UNBOUNDED,
        prefix_cache=True,
    )


def _judge_constants(spec: RunSpec) -> EngineConstants:
    """Of the first virtual judge; the constants of others are usual ones."""
    for part in device_judges(spec):
        if isinstance(part, GenerativePart) and isinstance(part.engine, VirtualJudge):
            return virtual_constants(part.engine)
    return usual_constants(_most_judgements(spec))


def _most_judgements(spec: RunSpec) -> int:
    """That every judge takes at once; a reward model names no bound."""
    bounds = (part.engine.max_num_seqs for part in device_judges(spec) if isinstance(part, GenerativePart))
    return min(bounds, default=UNBOUNDED)


def _role_of(part: EndpointPart) -> str:
    return f"endpoint:{part.name}"
