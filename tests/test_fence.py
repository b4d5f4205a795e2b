"""The fence: the highest epoch ever heard of rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.errors import ExitCode, FailureClass, FencedError
from yatt_core.fence import EpochFence


def test_a_replaced_driver_is_refused_for_ever():
    fence = EpochFence(3)
    fence.check(3)
    fence.check(5)
    for epoch in (3, 4, 0):
        with pytest.raises(FencedError, match=f"^epoch {epoch} was replaced by 5$"):
            fence.check(epoch)
    fence.check(5)
    assert fence.epoch == 5


@given(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=20))
def test_who_is_let_through(start, epochs):
    fence, highest = EpochFence(start), start
    for epoch in epochs:
        if epoch < highest:
            with pytest.raises(FencedError):
                fence.check(epoch)
        else:
            fence.check(epoch)
            highest = epoch
        assert fence.epoch == highest


def test_being_fenced_is_a_class_of_its_own():
    assert FencedError.failure_class is FailureClass.FENCED
    assert FencedError.exit_code == ExitCode.LEASE_HELD


def test_who_drives_the_run_can_be_looked_up():
    announced = [2]
    fence = EpochFence(3, lambda: announced[0])
    assert not fence.renew() and fence.epoch == 3
    announced[0] = 4
    assert fence.renew() and fence.epoch == 4
    assert not fence.renew()
    with pytest.raises(FencedError):
        fence.check(3)
