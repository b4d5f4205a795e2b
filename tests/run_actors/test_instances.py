"""The actors of rollout instances over several nodes: which there are, and which end when one of them is gone or moves."""

from __future__ import annotations

from yatt_core.cluster.seating import RankLayout
from yatt_core.run_actors.instances import InstanceSeats

LAYOUT = RankLayout(8, 4, parts=2, least=2)
"""Two instances of four devices, of which two each must be on one node."""


def test_an_instance_has_an_actor_on_each_of_its_nodes() -> None:
    made = InstanceSeats("aabbccdd", LAYOUT)
    assert made.followers == ["follower-0", "follower-1"]
    assert made.members_of("follower-1") == made.members_of("rollout-1") == ["rollout-1", "follower-1"]
    assert (made.of("rollout-0"), made.of("follower-0"), made.of("follower-1")) == ((0, 1), (2, 3), (6, 7))
    whole = InstanceSeats("aaaabbbb", LAYOUT)
    assert (whole.followers, whole.members_of("rollout-1"), whole.of("rollout-1")) == ([], ["rollout-1"], (4, 5, 6, 7))


def test_the_actors_of_an_instance_end_together() -> None:
    made = InstanceSeats("aabbccdd", LAYOUT)
    there = dict(zip(NAMES, "abcd", strict=True))
    assert made.broken(there) == []
    assert made.broken({name: there[name] for name in NAMES[:3]}) == ["rollout-1"], "its other part was lost"
    assert made.broken({**there, "follower-0": "e"}) == ["rollout-0", "follower-0"], "a part is elsewhere"
    assert made.broken({"trainer-0": "a"}) == []


def test_all_instances_end_when_they_are_divided_in_another_way() -> None:
    there = dict(zip(NAMES, "abcd", strict=True))
    ended = InstanceSeats("aaaabbbb", LAYOUT).broken(there)
    assert sorted(ended) == sorted(NAMES) and len(ended) == len(set(ended))


def test_instances_that_are_never_divided_stay_where_they_are() -> None:
    made = InstanceSeats("aabb", RankLayout(4, 2))
    assert made.broken({"rollout-0": "b"}) == []


NAMES = ("rollout-0", "follower-0", "rollout-1", "follower-1")


def test_instances_may_begin_behind_the_seats_of_the_trainer() -> None:
    made = InstanceSeats("aabb", RankLayout(2, shares=True), first=2)
    assert [made.of(name) for name in ("rollout-0", "rollout-1")] == [(2,), (3,)]
    few = InstanceSeats("ab", RankLayout(2, shares=True), first=1)
    assert [few.of(name) for name in ("rollout-0", "rollout-1")] == [(1,), (1,)], "they share what there is"
