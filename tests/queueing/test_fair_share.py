"""Use decays, and victims are the cheapest set."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.queueing.fair_share import Use, decayed_use
from flows.queueing.limits import Stretch, violations
from flows.queueing.pools import HOUR, FairShareSpec, parse_pools
from flows.queueing.victims import cheapest, stop_price
from tests.queueing.facts import holding


def test_a_second_that_is_a_half_life_ago_counts_half() -> None:
    fair = FairShareSpec(half_life_hours=1.0)
    brief = [Use("ada", "chat", 4, 0.0, 1.0)]
    assert decayed_use(fair, brief, 1.0)["ada"] == pytest.approx(4.0, rel=1e-3)
    assert decayed_use(fair, brief, 1.0 + HOUR)["ada"] == pytest.approx(2.0, rel=1e-3)
    assert set(decayed_use(FairShareSpec(by="project"), brief, 1.0)) == {"chat"}


@given(
    runs=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.floats(0.0, 1000.0)), max_size=6),
    needed=st.integers(1, 12),
)
def test_the_victims_are_the_cheapest_of_all_sets(runs: list[tuple[int, int, float]], needed: int) -> None:
    candidates = []
    for number, (devices, level, lost) in enumerate(runs):
        entry = holding(f"run-{number}", 10 * number, devices, level, lost_seconds=lost)
        assert entry.held is not None
        candidates.append((entry, entry.held))
    lowest = min((held.level for _, held in candidates), default=0)
    sets = [
        chosen
        for size in range(len(candidates) + 1)
        for chosen in combinations(candidates, size)
        if sum(len(held.devices) for _, held in chosen) >= needed
    ]
    found = cheapest(candidates, needed)
    if not sets:
        assert found is None
        return
    assert found is not None
    prices = {entry.run: stop_price(entry, held, lowest) for entry, held in candidates}
    best = min(sum(prices[entry.run] for entry, _ in chosen) for chosen in sets)
    assert sum(prices[entry.run] for entry in found) == pytest.approx(best)


POOLS = parse_pools({"pools": {"main": {"devices": 4, "quotas": {"chat": 3}}}, "devices_per_owner": 3}, "pools")


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (("ada", "a", (0, 1)), ("ben", "b", (1,)), "device 1 of main is held by r1 and by r2"),
        (("ada", "a", (0, 1)), ("ada", "b", (2, 3)), "ada holds 4 devices, the limit is 3"),
        (("ada", "chat", (0, 1)), ("ben", "chat", (2, 3)), "project chat holds 4 devices of main, its quota is 3"),
    ],
)
def test_the_audit_finds_what_was_exceeded(
    one: tuple[str, str, tuple[int, ...]], two: tuple[str, str, tuple[int, ...]], said: str
) -> None:
    first = Stretch("r1", "main", *one, 0.0, 10.0)
    assert said in "\n".join(violations(POOLS, [first, Stretch("r2", "main", *two, 9.0, None)]))
    assert list(violations(POOLS, [first, Stretch("r2", "main", *two, 10.0, None)])) == []
    assert list(violations(POOLS, [first, Stretch("r2", "main", *two, 5.0, 5.0)])) == []
