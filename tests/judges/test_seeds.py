"""Seeds of judgements: all distinct, and the same in every version."""

from __future__ import annotations

import itertools

from yatt_core.judges.seeds import judgement_seeds
from yatt_core.keys import sample_seed


def test_seeds_are_apart_and_a_larger_count_goes_on():
    places = list(itertools.product((0, 1), repeat=5))
    seeds = [seed for part in ("a", "b") for place in places for seed in judgement_seeds(part, 3, *place)]
    assert len(set(seeds)) == len(seeds) == 2 * 32 * 3
    assert not set(seeds) & {sample_seed(*place) for place in places}
    assert judgement_seeds("a", 2, 0, 0, 1, 2, 3) == judgement_seeds("a", 5, 0, 0, 1, 2, 3)[:2]


def test_seeds_are_pinned():
    """A change to this number changes every run with a judge."""
    assert judgement_seeds("judge", 1, 0, 0, 1, 2, 3) == (11801047337136194861,)
