"""Runs a workload under a mode of asynchrony in simulated time.

Consumes a workload and a mode. Produces the seconds between commits over the workload's iterations, how stale the tokens
were, and what deciding cost. Iterations before the workload's first one fill the run: their load is that of the first one,
and they are not counted. Costs are those of the cost model; nothing is fitted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.asynchrony.devices import Devices, collected, stepped
from benchmarks.placement_lower_bound import full_work
from yatt_core.placement.simulation.campaign import draw_iterations, setting_of
from yatt_core.placement.simulation.groups import Content, Supply, whole_content
from yatt_core.placement.simulation.overlap import learner_on, shared_seconds, sync_seconds
from yatt_core.placement.simulation.slices import SlicedRun, Slices
from yatt_core.placement.simulation.staleness import Staleness, staleness_of
from yatt_core.placement.simulation.tail_rounds import TailRounds, TailRun
from yatt_core.placement.workload import Scenario, value_at

FILLING = 8
"""Iterations before the first counted one."""
SETTLING = 3
"""The last of them whose times are simulated, so that the devices suit the load when counting begins."""
SLICES_AT_MOST = 16
"""Iterations in which a response may draw."""
SLICE_DIVISORS = (2, 3, 4, 6, 8, 12, 16)
"""The longest response over these is tried as the length of a slice, longest first."""
TAIL_SHARE = 4 / 3
"""Groups that a short round starts, over those that an iteration needs: every fourth round is a long one."""
FIRST_JUDGES = 1 / 8
FIRST_STEPS = 12
STEPS = 2
"""Steps of the search for the devices of an iteration; the first search begins at a guess."""
HORIZON = 4
"""Iterations in which other devices must save what changing to them takes."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode, or a combination of modes.

    lag: iterations that are collected ahead, with the trainer on devices of its own; 0 if all have all devices in turn.
    in_flight: groups in flight over those that an iteration needs, if responses are drawn in slices.
    cut: whether a slice ends at the token at which enough groups are complete.
    tail: whether long groups get rounds of their own.
    """

    name: str
    lag: int = 0
    in_flight: float | None = None
    cut: bool = False
    tail: bool = False


MODES = (
    Mode("lag1", lag=1),
    Mode("tail", tail=True),
    Mode("slices", in_flight=2.5),
    Mode("slices+tail", in_flight=2.5, cut=True),
    Mode("lag1+slices", lag=1, in_flight=1.5),
    Mode("lag1+slices+tail", lag=1, in_flight=1.5, cut=True),
)


@dataclass(frozen=True, slots=True)
class ModeOutcome:
    """A workload under a mode.

    seconds: between the commits of the counted iterations.
    tokens: learnt from in each of them.
    slice_tokens: the length of a slice, if it is fixed.
    rounds: rounds of the engines in each iteration, in the mean.
    plan_cpu_s: CPU seconds of the slowest plan.
    """

    mode: str
    seconds: list[float]
    tokens: list[int]
    staleness: Staleness
    slice_tokens: int | None
    rounds: float
    devices: Devices
    plan_cpu_s: float


def run_mode(workload: Scenario, mode: Mode, counted: int | None = None) -> ModeOutcome:
    """Simulates a workload under a mode. counted: iterations to count, if not the workload's."""
    count = counted or workload.iterations
    length = slice_tokens(workload, mode.in_flight) if mode.in_flight and not mode.cut else None
    contents = contents_of(workload, mode, length, FILLING + count + mode.lag)
    devices = first_devices(workload, mode)
    seconds: list[float] = []
    plans = [0.0]
    for number in range(FILLING - SETTLING, FILLING + count):
        ahead = contents[number + mode.lag]
        before = devices
        started = time.process_time()
        devices = _planned(
            workload=workload,
            mode=mode,
            devices=devices,
            ahead=contents[number + mode.lag - 1],
            learnt=contents[number - 1],
            steps=STEPS if seconds else FIRST_STEPS,
        )
        plans.append(time.process_time() - started)
        moved = workload.switch.repartition_s if devices.divided_otherwise(before) else 0.0
        seconds.append(
            moved
            + iteration_seconds(workload=workload, mode=mode, devices=devices, ahead=ahead, learnt=contents[number])
        )
    last = contents[FILLING : FILLING + count]
    staleness = staleness_of(last, FILLING)
    return ModeOutcome(
        mode=mode.name,
        seconds=seconds[SETTLING:],
        tokens=[content.tokens for content in last],
        staleness=replace(
            staleness,
            tokens=staleness.tokens + mode.lag,
            starts=staleness.starts + mode.lag,
            most=staleness.most + mode.lag,
        ),
        slice_tokens=length,
        rounds=sum(len(content.rounds) for content in last) / count,
        devices=devices,
        plan_cpu_s=max(plans),
    )


def iteration_seconds(workload: Scenario, mode: Mode, devices: Devices, ahead: Content, learnt: Content) -> float:
    """Returns the seconds between two commits: the engines collect `ahead` while the trainer learns from `learnt`.

    Without lag both are the same iteration, and all devices do one after the other.
    """
    collect_s = collected(setting_of(workload), devices, ahead.rounds).collect_s
    if not mode.lag:
        return shared_seconds(workload, collect_s, learnt.tokens)
    learner = learner_on(workload, devices.trainer * workload.cluster.devices_per_instance)
    return max(collect_s, learner.seconds(learnt.tokens)) + sync_seconds(workload)


def _planned(workload: Scenario, mode: Mode, devices: Devices, ahead: Content, learnt: Content, steps: int) -> Devices:
    """Returns the devices on which the newest iteration would have been fastest, at most so many steps away."""
    instances = len(workload.cluster.speeds)

    def seconds_on(tried: Devices) -> float:
        return iteration_seconds(workload=workload, mode=mode, devices=tried, ahead=ahead, learnt=learnt)

    moving_s = workload.switch.repartition_s / HORIZON
    return stepped(instances, devices, seconds_on, rounds=steps, moving_s=moving_s)


def first_devices(workload: Scenario, mode: Mode) -> Devices:
    """Returns the devices at first: with lag, so many for the trainer that it and full engines take equally long."""
    setting = setting_of(workload)
    instances = len(setting.speeds)
    trainer = 0
    if mode.lag:
        whole = next(whole_contents(workload, 1))
        engines_s = sum(full_work(setting, wave) for wave in whole.rounds)
        speeds = sorted(setting.speeds)
        per_instance = workload.cluster.devices_per_instance

        def slower(count: int) -> float:
            learning = learner_on(workload, count * per_instance).seconds(whole.tokens)
            return max(learning, engines_s / sum(speeds[count:]))

        trainer = min(range(1, instances - 1), key=slower)
    return Devices(trainer, max(1, round((instances - trainer) * FIRST_JUDGES)))


def contents_of(workload: Scenario, mode: Mode, length: int | None, count: int) -> list[Content]:
    """Returns what each iteration draws and learns from, which does not depend on any device."""
    samples = workload.samples
    tool_tokens = setting_of(workload).tool_tokens
    supply = Supply(workload, FILLING)
    if mode.in_flight:
        in_flight = math.ceil(samples.prompts * mode.in_flight)
        slices = Slices(prompts=samples.prompts, tokens=length, most=SLICES_AT_MOST, in_flight=in_flight)
        sliced = SlicedRun(supply, slices, tool_tokens)
        return [sliced.next(iteration) for iteration in range(count)]
    if mode.tail:
        tail = TailRun(supply, TailRounds(samples.prompts, math.ceil(samples.prompts * TAIL_SHARE)), tool_tokens)
        return [tail.next(iteration) for iteration in range(count)]
    return list(whole_contents(workload, count))


def whole_contents(workload: Scenario, count: int) -> Iterator[Content]:
    """Yields iterations of whole responses, which have the workload's own draws from its first iteration on."""
    fillers = [
        draw_iterations(workload.model_copy(update={"seed": workload.seed + 1000 + number, "iterations": 1}))[0]
        for number in range(min(count, FILLING))
    ]
    drawn = (
        draw_iterations(workload.model_copy(update={"iterations": max(0, count - FILLING)})) if count > FILLING else []
    )
    started = 0
    for iteration, waves in enumerate([*fillers, *drawn]):
        content = whole_content(waves, iteration, started)
        started += content.in_flight
        yield content


def slice_tokens(workload: Scenario, in_flight: float) -> int:
    """Returns the shortest slice with which each iteration needs one round, on other draws than those that are counted.

    The load is the heaviest that the workload describes. What a plan of the run could propose: it looks at lengths alone.
    """
    samples = workload.samples
    response = samples.response
    heaviest = max(range(workload.iterations), key=lambda iteration: value_at(response.median, iteration))
    steady = response.model_copy(
        update={"median": value_at(response.median, heaviest), "sigma": value_at(response.sigma, heaviest)}
    )
    other = workload.model_copy(
        update={"seed": workload.seed + 1000, "samples": samples.model_copy(update={"response": steady})}
    )
    shortest = response.max
    for divisor in SLICE_DIVISORS:
        length = response.max // divisor
        contents = contents_of(other, Mode("slices", in_flight=in_flight), length, FILLING)
        if any(len(content.rounds) > 1 for content in contents[FILLING // 2 :]):
            break
        shortest = length
    return shortest
