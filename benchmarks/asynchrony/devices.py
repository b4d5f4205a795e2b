"""Chooses how many engines judge, and how many devices train, from the iteration before: one step at a time.

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
    """

    trainer: int
    judges: int


def engines_beside(setting: Setting, trainer: int) -> Setting:
    """Returns the setting without the trainer's instances, which are the slowest; of equally fast ones, the last."""
    speeds = setting.speeds
    slowest = set(sorted(range(len(speeds)), key=lambda i: (speeds[i], -i))[:trainer])
    return replace(setting, speeds=tuple(speed for i, speed in enumerate(speeds) if i not in slowest))


def collected(setting: Setting, devices: Devices, waves: Sequence[WaveWork]) -> IterationTelemetry:
    """Simulates the waves on the engines, which go over to judging along the curve that suits most loads."""
    engines = engines_beside(setting, devices.trainer)
    roles = roles_of(engines.speeds, devices.judges)
    policy = CurvePolicy(Knobs(devices.judges, *SHAPES[0]), roles, engines)
    return collect(engines, roles, policy, waves, before=roles)


def stepped(instances: int, devices: Devices, seconds: Callable[[Devices], float]) -> Devices:
    """Returns the best of the devices in force and those one step away.

    seconds: the time of an iteration like the newest one on given devices.
    """
    step = max(1, instances // STEPS)
    trainers = [devices.trainer]
    if devices.trainer:
        trainers += [count for count in (devices.trainer - step, devices.trainer + step) if 0 < count < instances - 1]
    near = [Devices(trainer, min(devices.judges, instances - trainer - 1)) for trainer in trainers]
    for judges in (devices.judges - step, devices.judges + step):
        if 0 <= judges < instances - devices.trainer:
            near.append(Devices(devices.trainer, judges))
    return min(near, key=seconds)
