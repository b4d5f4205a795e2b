"""Which kinds of devices a run is charged for, on clusters with one kind and with several."""

from __future__ import annotations

from yatt_core.cluster.devices import Device
from yatt_core.planning.cluster import read_cards
from yatt_core.planning.device_kinds import kinds_of
from yatt_core.protocols.receipts import ActorSeat

CARDS = read_cards()


def gpus(node: str, model: str, count: int) -> list[Device]:
    return [Device(number, "gpu", node, f"{node}:gpu{number}", model) for number in range(count)]


def seat(actor: str, node: str, device: str) -> ActorSeat:
    return ActorSeat(actor, "", node, device, 0, 0)


def test_on_equal_devices_a_run_is_charged_for_as_many_as_it_needs() -> None:
    cores = [Device(number, "core", "a", f"a:core{number}") for number in range(16)]
    assert kinds_of(cores, [], 3, CARDS) == {"core": 3}
    assert kinds_of(gpus("a", "H100", 8), [seat("rollout-0", "a", "gpu0")], 4, CARDS) == {"H100": 4}


def test_on_a_mixed_cluster_the_seats_tell_the_kinds() -> None:
    devices = [*gpus("a", "H100", 4), *gpus("b", "L40S", 4)]
    seats = [
        seat("controller-0", "a", ""),
        seat("rollout-0", "b", "gpu0, gpu1"),
        seat("trainer-0", "a", "gpu2"),
        seat("rollout-1", "a", "gpu2"),
    ]
    assert kinds_of(devices, seats, 3, CARDS) == {"H100": 1, "L40S": 2}


def test_unknown_gpus_go_by_the_name_that_their_driver_reports() -> None:
    assert kinds_of(gpus("a", "Dream-9000", 2), [], 2, CARDS) == {"Dream-9000": 2}
    assert kinds_of([], [], 2, CARDS) == {"core": 2}
