"""Which placement suits a load best: every mode is simulated, and the shortest iteration wins.

Consumes a `Load`; produces `PlacementOutcome`s, best first. Without a judge, roles take turns and there is nothing to
compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from yatt_core.placement.lending import LevellingPolicy
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.seen import PlacementPolicy
from yatt_core.placement.simulation.campaign import Campaign, draw_iterations, run_campaign, setting_of
from yatt_core.placement.workload import Scenario
from yatt_core.planning.time.load import BesideTrainer, Load

MOST_SPLITS = 8
WORTH = 0.02
"""Relative gain below which a more complicated mode is not worthwhile."""


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """Means over the simulated iterations.

    judges: instances that judge from the start, out of `instances`.
    step_s: from one commit to the next.
    tokens_per_second: response tokens per second.
    idle: fraction of the devices' time without work.
    """

    mode: str
    judges: int
    instances: int
    collect_s: float
    train_s: float
    step_s: float
    tokens_per_second: float
    idle: float

    @property
    def partition(self) -> str:
        """Describes which instances serve which role."""
        if self.mode == "colocate":
            all_of_them = "the instance serves" if self.instances == 1 else f"all {self.instances} instances serve"
            return f"{all_of_them} every role in turn"
        rolling = self.instances - self.judges
        start = f"{rolling} of {self.instances} instances roll out, {self.judges} judge"
        return start if self.mode == "split" else f"{start} from the start; roles then follow the load"


def outcomes(load: Load, has_judge: bool) -> list[PlacementOutcome]:
    """Returns the outcomes of all modes tried, shortest iteration first."""
    candidates: list[tuple[str, PlacementPolicy]] = [("colocate", ColocatePool())]
    count = len(load.workload.cluster.speeds)
    if has_judge and count > 1:
        splits = sorted({max(1, round(n * (count - 1) / MOST_SPLITS)) for n in range(1, MOST_SPLITS + 1)})
        candidates += [("split", SplitPool(judges)) for judges in splits]
        candidates.append(("dynamic", Dynamic()))
    found = [_outcome(mode, _campaign(load, policy), load) for mode, policy in candidates]
    return sorted(found, key=lambda outcome: outcome.step_s)


def _campaign(load: Load, policy: PlacementPolicy) -> Campaign:
    """Simulates collect; instances that the trainer lends join once it has learnt from an iteration like these."""
    beside = load.beside
    if beside is None or not beside.lent:
        return run_campaign(load.workload, policy)
    iterations = draw_iterations(load.workload)
    samples = [sample for waves in iterations for wave in waves for sample in wave.samples]
    tokens = sum(sample.prompt + sample.response for sample in samples) / len(iterations)
    setting = replace(
        setting_of(load.workload),
        lent=beside.lent,
        lent_after_s=_train_seconds(load.workload, tokens) - beside.sync_s,
        migrates=beside.migrates,
    )
    return run_campaign(load.workload, LevellingPolicy(policy) if beside.migrates else policy, setting=setting)


def best(found: list[PlacementOutcome]) -> PlacementOutcome:
    """Returns the simplest mode within `WORTH` of the best: colocate before split before dynamic.

    found: best first.
    """
    limit = found[0].step_s * (1.0 + WORTH)
    order = ("colocate", "split", "dynamic")
    return min((o for o in found if o.step_s <= limit), key=lambda o: (order.index(o.mode), o.step_s))


def _outcome(mode: str, campaign: Campaign, load: Load) -> PlacementOutcome:
    workload = load.workload
    past = campaign.past
    collect = sum(campaign.collect_s) / len(past)
    samples = [sample for iteration in past for wave in iteration.waves for sample in wave.samples]
    responses = sum(sample.response for sample in samples) / len(past)
    tokens = responses + sum(sample.prompt for sample in samples) / len(past)
    train = _train_seconds(workload, tokens)
    busy = sum(usage.decode_s + usage.prefill_s for iteration in past for usage in iteration.usage) / len(past)
    instances = len(workload.cluster.speeds)
    working = busy / instances
    step = collect + train if load.beside is None else _step_beside(load.beside, collect, train, working)
    judging = round(sum(plan.roles.count("J") for plan in campaign.plans) / len(past))
    learning = tokens * workload.training.device_seconds_per_token / workload.cluster.devices
    apart = 0.0 if load.beside is None else load.beside.apart
    used = working + learning * (apart or 1.0)
    return PlacementOutcome(
        mode=mode,
        judges=round(judging * load.instances / instances),
        instances=load.instances,
        collect_s=collect,
        train_s=train,
        step_s=step,
        tokens_per_second=responses * load.scale / step,
        idle=1.0 - used / ((1.0 + apart) * step),
    )


def _step_beside(beside: BesideTrainer, collect_s: float, train_s: float, working_s: float) -> float:
    """Returns the seconds from one commit to the next if engines collect one iteration while the trainer learns from another.

    Then they stop for the new weights. Devices that both use at the same time take at least as long as both need of them.

    working_s: seconds for which an engine works within `collect_s`, in the mean.
    """
    learn_s = train_s - beside.sync_s
    both_s = learn_s + working_s if beside.contends else 0.0
    return max(collect_s, learn_s, both_s) + beside.sync_s


def _train_seconds(workload: Scenario, tokens: float) -> float:
    """Returns the seconds of everything after collect."""
    training = workload.training
    share = training.device_seconds_per_token * tokens / workload.cluster.devices
    return workload.switch.train_s + training.fixed_s + share
