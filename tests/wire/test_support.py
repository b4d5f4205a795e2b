"""Supports of tokens: taken, joined and searched without losing their place."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.wire.support import Support

SETS = st.lists(st.sets(st.integers(0, 30), max_size=5), max_size=12)


def support_of(sets: list[set[int]]) -> Support:
    tokens = [token for one in sets for token in sorted(one)]
    return Support(np.array(tokens, np.int32), np.array([len(one) for one in sets], np.int32))


def sets_of(support: Support) -> list[set[int]]:
    bounds = support.offsets
    return [set(support.tokens[a:b].tolist()) for a, b in itertools.pairwise(bounds)]


@given(SETS, SETS, st.data())
def test_supports_are_joined_and_taken_in_any_order(
    first: list[set[int]], second: list[set[int]], data: st.DataObject
) -> None:
    joined = Support.joined([support_of(first), Support.none(2), support_of(second)])
    whole = [*first, set(), set(), *second]
    assert sets_of(joined) == whole
    places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    assert sets_of(joined.at(np.array(places, np.int64))) == [whole[place] for place in places]
    assert sets_of(joined.at(slice(1, 4))) == whole[1:4]


@given(SETS, st.data())
def test_a_token_is_looked_for_in_its_own_support(sets: list[set[int]], data: st.DataObject) -> None:
    tokens = [data.draw(st.integers(0, 30)) for _ in sets]
    found = support_of(sets).contains(np.array(tokens, np.int32))
    assert found.tolist() == [token in one for token, one in zip(tokens, sets, strict=True)]
