"""The fence: only the highest term seen so far is admitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.errors import ExitCode, FailureClass, FencedError
from yatt_core.fence import TermFence


def test_a_replaced_driver_is_refused_forever():
    fence = TermFence(3)
    fence.check(3)
    fence.check(5)
    for term in (3, 4, 0):
        with pytest.raises(FencedError, match=f"^term {term} was replaced by 5$"):
            fence.check(term)
    fence.check(5)
    assert fence.term == 5


@given(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=20))
def test_which_terms_are_admitted(start, terms):
    fence = TermFence(start)
    highest = start
    for term in terms:
        if term < highest:
            with pytest.raises(FencedError):
                fence.check(term)
        else:
            fence.check(term)
            highest = term
        assert fence.term == highest


def test_being_fenced_has_its_own_error_class():
    assert FencedError.failure_class is FailureClass.FENCED
    assert FencedError.exit_code == ExitCode.LEASE_HELD


def test_an_announced_term_is_adopted():
    announced = [2]
    fence = TermFence(3, lambda: announced[0])
    assert not fence.renew() and fence.term == 3
    announced[0] = 4
    assert fence.renew() and fence.term == 4
    assert not fence.renew()
    with pytest.raises(FencedError):
        fence.check(3)
