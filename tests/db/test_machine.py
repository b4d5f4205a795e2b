"""State machines over the ledger: its guarantees hold for any order of three drivers' steps, pauses and crashes.

`make test` tries a few interleavings, `make verify` more than ten thousand.
"""

from __future__ import annotations

import pytest

from db.ledger import Ledger
from tests.db.machines.deliveries import Deliveries
from tests.db.machines.iterations import Iterations
from tests.db.machines.promotions import Promotions
from tests.db.machines.world import World, explore
from tests.db.tools import SimulatedClock

MACHINES = [Iterations, Deliveries, Promotions]
FEW = 20
MANY = {"sqlite": 5_100, "postgresql": 300}


@pytest.mark.parametrize("machine", MACHINES)
def test_guarantees_hold_for_any_order_of_steps(machine: type[World], ledger: Ledger, clock: SimulatedClock) -> None:
    explore(machine, ledger, clock, FEW)


@pytest.mark.verify
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("machine", MACHINES)
def test_guarantees_hold_for_ten_thousand_orders_of_steps(
    machine: type[World], ledger: Ledger, clock: SimulatedClock, backend: str
) -> None:
    explore(machine, ledger, clock, MANY[backend])
