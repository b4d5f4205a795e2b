"""The kinds of the devices that a run uses, as its model cards name them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from yatt_core.planning.cluster import CORE, Card, card_of
from yatt_core.protocols.receipts import ActorSeat

if TYPE_CHECKING:
    # Not at run time: it would import Ray.
    from yatt_core.cluster.devices import Device


def kinds_of(
    devices: Sequence[Device], seats: Sequence[ActorSeat], used: int, cards: Mapping[str, Card]
) -> dict[str, int]:
    """Returns how many devices of each kind a run uses.

    devices: those of the cluster.
    seats: where the run's actors are; on a cluster with several kinds of devices, they tell which ones are used.
    used: number of devices that the run needs.
    """
    kinds = {device.name: _kind_of(device, cards) for device in devices}
    taken = {f"{seat.node}:{name}" for seat in seats for name in seat.device.split(", ") if name}
    found = Counter(kinds[name] for name in sorted(taken) if name in kinds)
    usual = (found or Counter(kinds.values())).most_common(1)
    first = usual[0][0] if usual else CORE
    if set(kinds.values()) <= {first} or found.total() != used:
        return {first: used}
    return dict(sorted(found.items()))


def _kind_of(device: Device, cards: Mapping[str, Card]) -> str:
    if device.kind == "core":
        return CORE
    return card_of(device.model, device.memory, cards) or device.model or "GPU"
