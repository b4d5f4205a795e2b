"""Which gates a run stands at: a function of the spec and the place, the same each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.gates.due import ITERATIONS, ROLLBACK, SPENDING, RunPosition, due_gates
from yatt_core.spec.sections.gates import GatesSpec, IterationsGate, RollbackGate, SpendingGate

ALL = GatesSpec(iterations=IterationsGate(every=4), rollback=RollbackGate(), spending=SpendingGate(device_hours=2.5))


def test_without_gates_nothing_is_asked() -> None:
    assert list(due_gates(GatesSpec(), RunPosition(1, 4, 8, "guard kl", 100.0))) == []


@given(st.integers(0, 3), st.integers(0, 20), st.integers(0, 20), st.floats(0, 50), st.booleans())
def test_each_gate_is_due_at_its_places_only(
    branch: int, iteration: int, target: int, hours: float, rolled_back: bool
) -> None:
    place = RunPosition(branch, iteration, target, "guard kl at iteration 3 of branch 0" if rolled_back else "", hours)
    found = {gate.kind: gate for gate in due_gates(ALL, place)}
    assert list(found.values()) == list(due_gates(ALL, place))
    goes_on = iteration < target
    assert (ITERATIONS in found) == (goes_on and iteration > 0 and iteration % 4 == 0)
    assert (ROLLBACK in found) == (goes_on and rolled_back)
    assert (SPENDING in found) == (goes_on and hours >= 2.5)
    if SPENDING in found:
        amount = float(found[SPENDING].key.removeprefix("spending-"))
        assert amount <= hours < amount + 2.5, "only the largest amount that was passed is asked about"
