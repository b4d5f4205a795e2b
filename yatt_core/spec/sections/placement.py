"""Which role runs on which device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel

DOTTED_NAME = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""`package.module:name`."""
OWN_MODES = frozenset({"colocate", "split", "dynamic"})
"""The modes that are no policies of the user's."""


SHARED = "shared"
APART = "apart"
LENT = "lent"


def is_shared(trainer: str) -> bool:
    """Returns True for a value that is left out of a spec's JSON, so that older specs keep their digests."""
    return trainer == SHARED


class PlacementSpec(SpecModel):
    """Which role runs on which device while experience is collected; for the update, the trainer uses all devices."""

    mode: Annotated[str, Names("code", except_for=OWN_MODES)] = Field(
        default="colocate", pattern=rf"^([a-z][a-z0-9_-]*|{DOTTED_NAME})$"
    )
    """`colocate`: rollout and judges take turns on all devices. `split`: a fixed split of the devices. `dynamic`:
    a split that follows the load, between and within iterations. Or the name of a custom policy, an entry point
    of the group `yatt.placement` or `package.module:name`. Of the samplers of a workload of your own and the trainer's ranks,
    which work in turn, `colocate` has both on the same devices, and `split` each on devices of their own."""
    judges: PositiveInt | None = None
    """With `split`: number of instances that judge; the others generate."""
    control_seconds: PositiveFloat = 1.0
    """Interval between two decisions about the pool within an iteration; on virtual engines, in their clock."""

    trainer: Literal["shared", "apart", "lent"] = Field(default="shared", exclude_if=is_shared)
    """The trainer's devices while it learns beside the engines (`asynchrony`). `shared`: it works on the engines' devices,
    which both then use at the same time. `apart`: its ranks have devices of their own, beside those of
    `rollout.engine.instances`. `lent`: its ranks have the devices of the first instances, which generate only while it
    does not learn, as far as that is worth what it costs; needs `asynchrony.lag`."""

    def trainer_mistakes(self, lag: int, overlaps: bool, engines: tuple[int, int], ranks: int) -> Iterator[str]:
        """Yields one line per contradiction of `trainer`, each starting with the key.

        overlaps: whether engines generate while the trainer works.
        engines: number of rollout instances, 0 if the cluster determines it, and devices of each.
        """
        instances, each = engines
        if self.trainer == APART and not overlaps:
            yield (
                "placement.trainer: apart, but engines and trainer work in turn and would leave each other's devices idle; "
                "expected shared, or asynchrony.lag of at least 1, or asynchrony.streamed"
            )
        if self.trainer != LENT:
            return
        if not lag:
            yield (
                "placement.trainer: lent, but without a lag the engines wait while the trainer learns; expected shared, or "
                "asynchrony.lag of at least 1"
            )
        if each != 1:
            yield f"placement.trainer: lent needs engines of one device each (given: {each}); expected shared or apart"
        elif instances <= ranks:
            yield (
                f"placement.trainer: lent, but the trainer's {ranks} ranks have the devices of all {instances} instances; "
                f"expected at least {ranks + 1} rollout.engine.instances"
            )
        elif self.judges is not None and instances - ranks <= self.judges < instances:
            yield (
                f"placement.trainer: lent, but the trainer's {ranks} ranks and {self.judges} judges leave none of {instances} "
                f"instances for rollout; expected at least {ranks + self.judges + 1} rollout.engine.instances"
            )

    def mistakes(self, shares: bool, instances: int, samplers: bool = False) -> Iterator[str]:
        """Yields one line per contradiction, each starting with the key.

        shares: whether a judge runs on the devices.
        instances: number of rollout instances; 0 if the cluster determines it.
        samplers: whether the instances are the samplers of a workload of one's own, beside which there are no judges.
        """
        if samplers:
            if self.mode not in ("colocate", "split"):
                yield f"placement.mode: samplers and trainer work in turn; expected colocate or split (given: {self.mode})"
            if self.judges is not None:
                yield "placement.judges: a workload of your own has no judges; leave it out"
            return
        if self.mode != "colocate" and not shares:
            yield (
                f"placement.mode: {self.mode} divides the devices between rollout and judges, but no judge of "
                "rewards.parts runs on them; use colocate"
            )
        if (self.mode == "split") != (self.judges is not None):
            yield "placement.judges: required with placement.mode split, and only allowed there"
        elif self.judges is not None and 0 < instances <= self.judges:
            yield (
                f"placement.judges: {self.judges} of {instances} instances leave none for rollout; "
                f"expected at most {instances - 1}, or more rollout.engine.instances"
            )
