"""Fair share: how much each account has used of its share, and the order of the queue that follows.

Consumes the periods during which devices were held; produces decayed device-seconds, and a sorting key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

from flows.queueing.facts import Entry
from flows.queueing.pools import HOUR, OWNER, FairShareSpec, PoolsSpec


@dataclass(frozen=True, slots=True)
class Use:
    """A period during which a run held devices, or still holds them.

    ended_at: now, if it is still held.
    """

    owner: str
    project: str
    devices: int
    started_at: float
    ended_at: float


def account_of(fair: FairShareSpec, owner: str, project: str) -> str:
    """Returns the account that a run's use counts for."""
    return owner if fair.by == OWNER else project


def decayed_use(fair: FairShareSpec, uses: Iterable[Use], now: float) -> dict[str, float]:
    """Returns the device-seconds of each account; a second that is a half-life ago counts half.

    The integral of devices * 2^-(now - t)/h over a period from a to b is devices * h/ln 2 * (2^-(now-b)/h - 2^-(now-a)/h).
    """
    half_life = fair.half_life_hours * HOUR
    scale = half_life / log(2)
    used: dict[str, float] = defaultdict(float)
    for use in uses:
        newest = 2.0 ** -((now - use.ended_at) / half_life)
        oldest = 2.0 ** -((now - use.started_at) / half_life)
        used[account_of(fair, use.owner, use.project)] += use.devices * scale * (newest - oldest)
    return dict(used)


def order_key(pools: PoolsSpec, used: Mapping[str, float], entry: Entry) -> tuple[int, float, int]:
    """Returns the key by which waiting runs are sorted: priority with age, use of the account's share, submission."""
    fair = pools.fair_share
    account = account_of(fair, entry.owner, entry.project)
    return -entry.level(pools.ageing_hours * HOUR), used.get(account, 0.0) / fair.shares.get(account, 1.0), entry.order
