"""What becomes of a warm cluster: free, lent, kept for a run whose driver was killed, spent."""

from __future__ import annotations

import pytest

from flows.run.lending import Ended
from ops.group.places import RUNS, Place, Use, choice

LENT = Place().lent("toy-1", 60.0)


def test_a_cluster_is_lent_to_one_run_at_a_time() -> None:
    assert choice([LENT], "toy-2") is None
    assert choice([LENT, Place()], "toy-2") == 1
    assert choice([], "toy-2") is None


def test_a_run_gets_the_cluster_in_which_its_actors_are() -> None:
    kept = LENT.abandoned(now=10.0)
    assert choice([Place(), kept], "toy-1") == 1
    assert choice([kept], "toy-2") is None, "actors of another run wait there"
    assert choice([Place(), LENT], "toy-1") == 1, "its driver has lost the lease"


@pytest.mark.parametrize(("ended", "use"), [(Ended.WELL, Use.FREE), (Ended.BADLY, Use.SPENT), (Ended.UNUSED, Use.FREE)])
def test_a_cluster_is_used_again_if_no_actor_can_be_left(ended: Ended, use: Use) -> None:
    after = LENT.given_back(ended)
    assert after.use is use
    assert after.run == ""


def test_a_cluster_is_kept_for_a_killed_driver_as_long_as_its_actors_wait() -> None:
    kept = LENT.abandoned(now=10.0)
    assert kept.at(69.0).use is Use.KEPT
    assert kept.at(70.0).use is Use.SPENT
    assert LENT.at(1e9) == LENT
    assert kept.lent("toy-1", 5.0).use is Use.LENT


def test_a_cluster_does_not_serve_runs_for_ever() -> None:
    place = Place()
    for _ in range(RUNS - 1):
        place = place.lent("toy-1", 0.0).given_back(Ended.WELL)
        assert place.use is Use.FREE
    unused = place.lent("toy-1", 0.0).given_back(Ended.UNUSED)
    assert unused == place, "nothing was started in it"
    assert place.lent("toy-1", 0.0).given_back(Ended.WELL).use is Use.SPENT
