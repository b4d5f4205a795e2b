"""Chooses how many engines judge, and how many devices train, from the iteration before: a few steps at a time.

Consumes the work of the newest iteration and the devices in force. Produces the devices of the next iteration. Where
engines stay full, few replays suffice: the load of one iteration resembles that of the next, and the search begins at the
best devices of the iteration before. A pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.search import SHAPES, roles_of
from yatt_core.placement.seen import IterationTelemetry, Setting
from yatt_core.placement.simulation.campaign import collect
from yatt_core.placement.work import WaveWork

STEPS = 16
"""A step moves this fraction of the instances, at least one."""


@dataclass(frozen=True, slots=True)
class Devices:
    """How the instances are divided.

    trainer: instances that only train; 0 if all train in turn with the engines.
    judges: of the others, those that judge from the start.
    shape: number of the curve's shape along which more of them go over to judging.
    """

    trainer: int
    judges: int
    shape: int = 0

    def divided_otherwise(self, other: Devices) -> bool:
        """Returns True if an instance has another role at the start of an iteration."""
        return (self.trainer, self.judges) != (other.trainer, other.judges)


def engines_beside(setting: Setting, trainer: int) -> Setting:
    """Returns the setting without the trainer's instances, which are the slowest; of equally fast ones, the last."""
    speeds = setting.speeds
    slowest = set(sorted(range(len(speeds)), key=lambda i: (speeds[i], -i))[:trainer])
    return replace(setting, speeds=tuple(speed for i, speed in enumerate(speeds) if i not in slowest))


def collected(setting: Setting, devices: Devices, waves: Sequence[WaveWork]) -> IterationTelemetry:
    """Simulates the waves on the engines, which go over to judging along a curve."""
    engines = engines_beside(setting, devices.trainer)
    roles = roles_of(engines.speeds, devices.judges)
    policy = CurvePolicy(Knobs(devices.judges, *SHAPES[devices.shape]), roles, engines)
    return collect(engines, roles, policy, waves, before=roles)


def stepped(
    instances: int,
    devices: Devices,
    seconds: Callable[[Devices], float],
    rounds: int,
    moving_s: float = 0.0,
) -> Devices:
    """Returns the best devices that a walk of at most `rounds` steps finds, each to the best of the devices one step away.

    seconds: the time of an iteration like the newest one on given devices.
    moving_s: what another division of the instances than the one in force must save in each iteration.
    """
    tried = {devices: seconds(devices)}
    found = devices
    for _ in range(rounds):
        for each in one_step_away(instances, found):
            if each not in tried:
                tried[each] = seconds(each) + (moving_s if each.divided_otherwise(devices) else 0.0)
        best = min(tried, key=lambda each: tried[each])
        if best == found:
            break
        found = best
    return found


def one_step_away(instances: int, devices: Devices) -> list[Devices]:
    """Returns the devices with a few more or fewer instances that train or judge, and those with another shape."""
    step = max(1, instances // STEPS)
    trainers = (devices.trainer - step, devices.trainer + step) if devices.trainer else ()
    near = [
        replace(devices, trainer=count, judges=min(devices.judges, instances - count - 1))
        for count in trainers
        if 0 < count < instances - 1
    ]
    near += [
        replace(devices, judges=count)
        for count in (devices.judges - step, devices.judges + step)
        if 0 <= count < instances - devices.trainer
    ]
    return [*near, *(replace(devices, shape=shape) for shape in range(len(SHAPES)) if shape != devices.shape)]
