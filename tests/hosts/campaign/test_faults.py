"""The schedule of host faults: determined by the seed, with enough of each kind."""

from __future__ import annotations

from collections import Counter

from tests.hosts.campaign.faults import PLAN, SECONDS, Kind, schedule

LEASE_SECONDS = 6.0


def test_a_seed_determines_the_faults() -> None:
    assert schedule(3, 50) == schedule(3, 50) != schedule(4, 50)
    assert len(schedule(3, 50)) == 50


def test_a_campaign_has_enough_faults_of_each_kind() -> None:
    faults = schedule(0, sum(PLAN.values()))
    kinds = Counter(fault.kind for fault in faults)
    assert kinds == Counter(PLAN) and kinds.total() >= 40
    assert kinds[Kind.WORKER_POWER] + kinds[Kind.DRIVER_POWER] >= 8 and kinds[Kind.DRIVER_POWER] >= 4
    assert kinds[Kind.PARTITION] + kinds[Kind.LONG_PARTITION] + kinds[Kind.PAIR_PARTITION] >= 12
    assert sum(fault.kind == Kind.LONG_PARTITION and fault.seconds > LEASE_SECONDS for fault in faults) >= 4
    assert kinds[Kind.LOSS] + kinds[Kind.DELAY] >= 6 and kinds[Kind.STORAGE] >= 4
    ways = {(fault.sending, fault.receiving) for fault in faults if fault.kind == Kind.PARTITION}
    assert ways == {(True, True), (True, False), (False, True)}
    assert {fault.keeps_disk for fault in faults if fault.kind == Kind.DRIVER_POWER} == {True, False}
    assert sum(fault.seconds for fault in faults) < 25 * 60


def test_a_short_campaign_has_one_fault_of_each_chosen_kind() -> None:
    assert {fault.kind for fault in schedule(1, len(Kind))} == set(Kind)
    (fault,) = schedule(1, 1, [Kind.STORAGE], quick=True)
    assert fault.kind == Kind.STORAGE and SECONDS[Kind.STORAGE][0] <= fault.seconds <= 20.0
