"""State machines over the ledger: any order of three drivers' steps, sleeps and crashes keeps the promises.

A few interleavings in `make test`, more than ten thousand in `make verify`.
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
def test_any_order_of_steps_keeps_the_promises(machine: type[World], ledger: Ledger, clock: SimulatedClock) -> None:
    explore(machine, ledger, clock, FEW)


@pytest.mark.verify
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("machine", MACHINES)
def test_ten_thousand_orders_of_steps_keep_the_promises(
    machine: type[World], ledger: Ledger, clock: SimulatedClock, backend: str
) -> None:
    explore(machine, ledger, clock, MANY[backend])
