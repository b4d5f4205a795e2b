"""The pools file: which devices are shared, what they cost, who may hold how many, and how the queue orders its runs.

Consumes `pools.yaml`; produces a `PoolsSpec`. Raises `ConfigurationError` with a line per mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Strict,
    field_validator,
    model_validator,
)

from yatt_core.errors import ConfigurationError
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model

OWNER: Final = "owner"
NAME = r"[a-z0-9][a-z0-9-]{0,39}\Z"
HOUR = 3600.0
DAY = 24 * HOUR


class Price(SpecModel):
    """What a device costs while a run holds it."""

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    """ISO 4217 code, such as EUR."""
    per_device_hour: NonNegativeFloat


class PoolSpec(SpecModel):
    """Devices that runs share. A run gets devices of one pool."""

    devices: Annotated[PositiveInt, Strict()] | None = None
    """Number of devices that are not GPUs of this machine, such as CPU cores. Expected unless `gpus` is given."""
    gpus: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Numbers of this machine's GPUs; a driver sees only those that its run holds."""
    price: Price | None = None
    """If missing, costs are not predicted."""
    spot: bool = False
    """A label for people: the devices may be reclaimed. It changes no decision; see `yatt queue devices`."""
    failures_per_device_day: NonNegativeFloat = 0.0
    """Expected failures or reclaims of a device in a day, until more of the pool's own history is known."""
    quotas: Mapping[str, PositiveInt] = {}
    """Maximum number of devices that the runs of a project may hold in this pool at a time."""

    @model_validator(mode="after")
    def _one_kind(self) -> PoolSpec:
        if (self.devices is None) == (self.gpus is None):
            raise ValueError("expected either devices or gpus")
        if self.gpus is not None and (len(set(self.gpus)) < len(self.gpus) or min(self.gpus) < 0):
            raise ValueError("gpus: expected different numbers from 0")
        return self

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the devices, in ascending order."""
        return tuple(sorted(self.gpus)) if self.gpus is not None else tuple(range(self.devices or 0))


class FairShareSpec(SpecModel):
    """Which of two runs of equal priority is first: the one whose account has used less of its share."""

    by: Literal["owner", "project"] = OWNER
    half_life_hours: PositiveFloat = 24.0
    """Time after which use counts half."""
    shares: Mapping[str, PositiveFloat] = {}
    """Weights of accounts; 1 if not listed."""


class PoolsSpec(SpecModel):
    """The pools of a home, and the rules of their queue."""

    pools: Mapping[str, PoolSpec] = Field(min_length=1)
    devices_per_owner: PositiveInt | None = None
    """Maximum number of devices that a person's runs may hold at a time, over all pools; None: no limit."""
    owners: Mapping[str, PositiveInt] = {}
    """The same for single persons, in place of `devices_per_owner`."""
    fair_share: FairShareSpec = FairShareSpec()
    ageing_hours: PositiveFloat = 12.0
    """Time of waiting that counts as one more level of priority, so that no run waits for ever."""
    protected_minutes: NonNegativeFloat = 10.0
    """Time after its start in which a run is not preempted."""
    stop_seconds: PositiveFloat | None = None
    """Time within which a preempted run must end, if need be in the middle of an iteration; None: at its next commit."""

    @field_validator("pools")
    @classmethod
    def _named(cls, pools: Mapping[str, PoolSpec]) -> Mapping[str, PoolSpec]:
        for name in pools:
            if re.match(NAME, name) is None:
                raise ValueError(f"{name!r:.60}: expected a name of at most 40 lower-case letters, digits and hyphens")
        return pools

    @model_validator(mode="after")
    def _one_currency(self) -> PoolsSpec:
        found = sorted({pool.price.currency for pool in self.pools.values() if pool.price is not None})
        if len(found) > 1:
            raise ValueError(f"pools: prices in {' and '.join(found)}; expected one currency")
        return self

    @model_validator(mode="after")
    def _apart(self) -> PoolsSpec:
        seen: dict[int, str] = {}
        for name, pool in self.pools.items():
            for number in pool.gpus or ():
                if number in seen:
                    raise ValueError(f"pools.{name}.gpus: GPU {number} belongs to pool {seen[number]} already")
                seen[number] = name
        return self

    def pool(self, name: str) -> PoolSpec:
        """Returns a pool. Raises `ConfigurationError` with the nearest names."""
        if name not in self.pools:
            near = get_close_matches(name, list(self.pools), n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(f"there is no pool {name!r}; {meant}pools: {', '.join(sorted(self.pools))}")
        return self.pools[name]

    def limit_of(self, owner: str) -> int | None:
        """Returns the maximum number of devices that a person's runs may hold."""
        return self.owners.get(owner, self.devices_per_owner)

    def most_devices(self, pool: str, owner: str, project: str) -> int:
        """Returns the largest run that a person can ever have in a pool. Raises `ConfigurationError`."""
        found = self.pool(pool)
        limits = [len(found.numbers), self.limit_of(owner), found.quotas.get(project)]
        return min(limit for limit in limits if limit is not None)


def load_pools(path: Path) -> PoolsSpec:
    """Returns the pools of a file."""
    return parse_pools(read_document(path), str(path))


def parse_pools(tree: Any, origin: str) -> PoolsSpec:
    """Returns the pools in a tree of plain values.

    origin: the tree's name in error messages.
    """
    return parse_model(PoolsSpec, tree, origin)
