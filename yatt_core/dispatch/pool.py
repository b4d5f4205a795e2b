"""A run's pool: its instances, the work that each admits, and the facts that a placement policy uses for planning.

Consumes a spec. The first instances are devices, which roll out or judge; after them comes one instance for
each third-party judge, which is an address, not a device.
"""

from __future__ import annotations

from yatt_core.dispatch.queue import AdmissionLimits
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.fitting import usual_constants
from yatt_core.placement.seen import Setting
from yatt_core.placement.workload import EngineConstants, SwitchCosts
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, VirtualJudge
from yatt_core.spec.roles import device_judges, endpoint_judges
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout

UNBOUNDED = 1 << 30
"""The maximum number of sequences assumed for an engine that specifies no limit."""
LEAST_BASE_S = 1e-9
"""Seconds per decode step for an engine configured to take none: the cost model divides by this number."""
WORK_THREADS = 32
"""Threads of a real instance with continuous batching: each of the batches that it works on has its own."""
MOST_WORK_THREADS = 128
"""The same with tools, at most: a later turn of a single response is a batch of its own."""


def judge_roles(spec: RunSpec) -> dict[str, str]:
    """Returns the role of the judging instances for each reward part."""
    here = dict.fromkeys((part.name for part in device_judges(spec)), JUDGE)
    return here | {part.name: _role_of(part) for part in endpoint_judges(spec)}


def instance_speeds(spec: RunSpec) -> list[float]:
    """Returns the speeds of all instances, endpoints last."""
    engine = spec.rollout.engine
    given = engine.speeds if isinstance(engine, VirtualRollout) else ()
    return [*(given or [1.0] * engine.instances), *[1.0] * len(endpoint_judges(spec))]


def instance_roles(spec: RunSpec) -> list[str]:
    """Returns the initial roles of all instances."""
    return [ROLLOUT] * spec.rollout.engine.instances + [_role_of(part) for part in endpoint_judges(spec)]


def work_threads(spec: RunSpec) -> int:
    """Returns the number of threads of a real instance with continuous batching, which is that of the batches it works on."""
    most = spec.rollout.engine.sequence_limit or WORK_THREADS
    return WORK_THREADS if spec.rollout.tools is None else min(max(WORK_THREADS, most), MOST_WORK_THREADS)


def dispatch_limits(spec: RunSpec) -> dict[str, AdmissionLimits]:
    """Returns how much work an instance admits at once, by role."""
    limits = {ROLLOUT: AdmissionLimits(), JUDGE: AdmissionLimits()}
    if (rollout := spec.rollout.engine).continuous:
        batches = None if spec.virtual else work_threads(spec)
        limits[ROLLOUT] = AdmissionLimits(batches, rollout.sequence_limit)
        limits[JUDGE] = AdmissionLimits(batches, _most_judgements(spec))
    return limits | {
        _role_of(part): AdmissionLimits(None, part.max_concurrent_requests) for part in endpoint_judges(spec)
    }


def pool_setting(spec: RunSpec) -> Setting:
    """Returns the pool as seen by a placement policy.

    Engines without known constants get typical values until they are fitted.
    """
    engine = spec.rollout.engine
    judges = device_judges(spec)
    speeds = tuple(instance_speeds(spec)[: engine.instances])
    switch = SwitchCosts(role_s=0.0, repartition_s=0.0, train_s=0.0)
    rollout = usual_constants(UNBOUNDED)
    if isinstance(engine, TorchRollout) and engine.continuous:
        rollout = usual_constants(engine.sequence_limit or UNBOUNDED)
    if isinstance(engine, VirtualRollout):
        rollout = virtual_constants(engine)
        switch = SwitchCosts(role_s=engine.switch_seconds, repartition_s=engine.repartition_seconds, train_s=0.0)
    # vLLM has noise of its own, which does not go on behind tokens that another engine has drawn.
    migrates = engine.continuous and not isinstance(engine, VllmRollout)
    return Setting(
        speeds=speeds,
        rollout=rollout,
        judge=_judge_constants(spec),
        switch=switch,
        control_period_s=spec.placement.control_seconds,
        judgements=sum(part.judgements for part in judges),
        prompts=spec.data.prompts_per_iteration,
        migrates=migrates,
        moved=dispatch_limits(spec)[ROLLOUT].batches if migrates else None,
    )


def constants_known(spec: RunSpec) -> bool:
    """Returns True if the engines' time constants are given and need not be fitted."""
    return isinstance(spec.rollout.engine, VirtualRollout) and spec.rollout.engine.continuous


def virtual_constants(engine: VirtualRollout | VirtualJudge) -> EngineConstants:
    """Returns the cost model's constants for a virtual engine.

    A prefix shared by all sequences of a request is read once.
    """
    return EngineConstants(
        base_s=max(engine.base_seconds, LEAST_BASE_S),
        per_sequence_s=engine.seconds_per_sequence,
        per_context_token_s=engine.seconds_per_context_token,
        per_prompt_token_s=engine.seconds_per_prompt_token,
        max_concurrent=engine.max_num_seqs or UNBOUNDED,
        prefix_cache=True,
    )


def _judge_constants(spec: RunSpec) -> EngineConstants:
    """Returns the constants of the first virtual judge; other judges get typical values."""
    for part in device_judges(spec):
        if isinstance(part, GenerativePart) and isinstance(part.engine, VirtualJudge):
            return virtual_constants(part.engine)
    return usual_constants(_most_judgements(spec))


def _most_judgements(spec: RunSpec) -> int:
    """Returns the number of judgements that every judge accepts at once; a reward model specifies no limit."""
    bounds = (part.engine.max_num_seqs for part in device_judges(spec) if isinstance(part, GenerativePart))
    return min(bounds, default=UNBOUNDED)


def _role_of(part: EndpointPart) -> str:
    return f"endpoint:{part.name}"
