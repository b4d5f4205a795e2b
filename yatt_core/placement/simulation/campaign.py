"""A whole simulated run: the plan, waves and telemetry of every iteration of a workload.

Consumes a workload and a policy. Produces the seconds of collect, the telemetry that the policy learned from, the
cost of deciding, and the log of all actions. The work of the waves does not depend on the policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from yatt_core.placement.actions import Action
from yatt_core.placement.moments import Moment
from yatt_core.placement.seen import IterationTelemetry, PlacementPolicy, Plan, PoolSeen, RuntimePolicy, Setting
from yatt_core.placement.simulation.simulator import Pool
from yatt_core.placement.work import Quota, WaveWork, draw_wave
from yatt_core.placement.workload import Scenario

Log = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Campaign:
    """The result of running a workload under a policy.

    plan_cpu_s: CPU seconds of each plan.
    tick_cpu_s: CPU seconds that the runtime policy took to decide on actions within iterations, in total.
    """

    plans: list[Plan] = field(default_factory=list)
    past: list[IterationTelemetry] = field(default_factory=list)
    plan_cpu_s: list[float] = field(default_factory=list)
    tick_cpu_s: float = 0.0

    @property
    def collect_s(self) -> list[float]:
        """Seconds of each iteration's collect."""
        return [iteration.collect_s for iteration in self.past]


def setting_of(workload: Scenario) -> Setting:
    """Returns the setting of the pool that a workload runs on."""
    tools = workload.samples.tools
    return Setting(
        speeds=workload.cluster.speeds,
        rollout=workload.engines.rollout,
        judge=workload.engines.judge,
        switch=workload.switch,
        control_period_s=workload.control_period_s,
        tool_tokens=tools.output_tokens if tools else 0,
        judgements=workload.samples.judgements,
        prompts=workload.samples.prompts,
    )


def draw_iterations(workload: Scenario) -> list[list[WaveWork]]:
    """Draws the waves of every iteration."""
    quota = Quota(workload)
    return [_draw(workload, iteration, quota) for iteration in range(workload.iterations)]


def _draw(workload: Scenario, iteration: int, quota: Quota) -> list[WaveWork]:
    waves: list[WaveWork] = []
    groups = quota.first()
    while groups:
        waves.append(draw_wave(workload, iteration, len(waves), groups))
        groups = quota.after(waves[-1].valid)
    return waves


def run_campaign(
    workload: Scenario,
    policy: PlacementPolicy,
    seen: Setting | None = None,
    log: Log | None = None,
    setting: Setting | None = None,
) -> Campaign:
    """Runs a workload under a policy.

    seen: the setting shown to the policy, if it differs from the real one.
    setting: of the pool, if it differs from the workload's, such as by instances that the trainer lends.
    """
    setting = setting or setting_of(workload)
    campaign = Campaign()
    state: dict[str, Any] = {}
    for iteration, waves in enumerate(draw_iterations(workload)):
        started = time.process_time()
        plan = policy.plan(seen or setting, campaign.past, state)
        campaign.plan_cpu_s.append(time.process_time() - started)
        tell = _teller(workload.name, iteration, log)
        if tell is not None:
            tell({"t": 0, "do": "roles", "roles": plan.roles})
        runtime_policy = _Timed(plan.runtime_policy)
        telemetry = collect(
            setting=setting,
            roles=plan.roles,
            runtime_policy=runtime_policy,
            waves=waves,
            before=campaign.past[-1].roles if campaign.past else None,
            log=tell,
        )
        campaign.tick_cpu_s += runtime_policy.cpu_s
        campaign.plans.append(plan)
        campaign.past.append(telemetry)
        state = plan.state
    return campaign


def collect(
    setting: Setting,
    roles: str,
    runtime_policy: RuntimePolicy,
    waves: Sequence[WaveWork],
    before: str | None,
    log: Log | None = None,
    longest_s: float = math.inf,
) -> IterationTelemetry:
    """Simulates one iteration.

    Raises `IterationTooLongError` if it takes longer than `longest_s` seconds.

    before: the roles at the start of the previous iteration, if there was one.
    """
    pool = Pool(setting, runtime_policy, log, longest_s)
    pool.start(roles, before)
    for wave in waves:
        pool.run_wave(wave)
    usage = tuple(usage for instance in pool.instances for usage in instance.usage)
    return IterationTelemetry(
        roles=roles, waves=tuple(waves), usage=usage, collect_s=pool.now, judging_s=pool.judging_s
    )


class _Timed:
    """Wraps a runtime policy and measures its CPU time."""

    def __init__(self, runtime_policy: RuntimePolicy) -> None:
        self._runtime_policy = runtime_policy
        self.cpu_s = 0.0

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the actions of the wrapped policy."""
        started = time.process_time()
        actions = self._runtime_policy.act(moment, pool)
        self.cpu_s += time.process_time() - started
        return actions


def _teller(workload: str, iteration: int, log: Log | None) -> Log | None:
    if log is None:
        return None
    return lambda line: log({"workload": workload, "iteration": iteration, **line})
