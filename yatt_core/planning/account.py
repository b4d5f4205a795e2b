"""Bytes of tensors on a device by purpose, and what a role holds there in each stage of an iteration.

A stage is a moment at which a device's memory use peaks: of an iteration, rollout and judge within `collect`, then
`prepare`, `learn` and `sync`; before the first one, supervised fine-tuning. The runtime's own memory (contexts,
communication, the interpreter) is counted separately from tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

SFT = "sft"
COLLECT = "collect"
JUDGE = "collect (judge)"
PREPARE = "prepare"
LEARN = "learn"
SYNC = "sync"
STAGES = (SFT, COLLECT, JUDGE, PREPARE, LEARN, SYNC)

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Bytes:
    """Tensors of one role on one device, in bytes.

    copies: copies of weights or state, in transfer or kept for a checkpoint.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    kv_cache: int = 0
    activations: int = 0
    copies: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Bytes)))

    def __mul__(self, count: int) -> Bytes:
        return Bytes(*(getattr(self, field.name) * count for field in fields(Bytes)))

    @property
    def total(self) -> int:
        """Sum of all fields."""
        return sum(getattr(self, field.name) for field in fields(self))


NOTHING = Bytes()


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """What a role holds on a device.

    stages: stage -> tensors.
    runtime: stage -> bytes of its process other than tensors.
    host: stage -> tensors in the host's memory for this device's share; empty if the device is the host.
    shares: number of such shares on the node that has most of them.
    """

    role: str
    stages: Mapping[str, Bytes]
    runtime: Mapping[str, int]
    host: Mapping[str, Bytes]
    shares: int = 1

    def at(self, stage: str) -> Bytes:
        """Returns the tensors on the device in a stage."""
        return self.stages.get(stage, Bytes())


@dataclass(frozen=True, slots=True)
class StageTotal:
    """The memory used on a device in a stage, and its capacity.

    capacity: bytes that the device has.
    host: bytes used in the host's memory, for all devices of a node.
    """

    stage: str
    tensors: int
    runtime: int
    capacity: int
    host: int
    host_capacity: int

    @property
    def short(self) -> int:
        """Bytes missing on the device; 0 if everything fits."""
        return max(0, self.tensors + self.runtime - self.capacity)

    @property
    def host_short(self) -> int:
        """Bytes missing in the host's memory; 0 if everything fits."""
        return max(0, self.host - self.host_capacity)


def stage_totals(
    roles: Iterable[RoleMemory], stages: Iterable[str], capacity: int, host_capacity: int
) -> list[StageTotal]:
    """Returns a device's memory in each stage, and that of its host."""
    listed = list(roles)
    return [
        StageTotal(
            stage=stage,
            tensors=sum(role.at(stage).total for role in listed),
            runtime=sum(role.runtime.get(stage, 0) for role in listed),
            capacity=capacity,
            host=sum(role.shares * role.host.get(stage, Bytes()).total for role in listed),
            host_capacity=host_capacity,
        )
        for stage in stages
    ]
