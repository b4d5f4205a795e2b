"""What a run has used: by its leases, and by the devices that its drivers held."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.billing.held_time import held_spans, total_charges
from flows.driver.spending import spent_by, wall_hours_of
from flows.run.lease import KEEPER
from tests.db.tools import SimulatedClock, holder
from tests.flows.driver.test_outages import MINUTE, Outage
from tests.flows.simulated import BranchRunActors, Simulation
from tests.spec.trees import VIRTUAL, spec
from yatt_core.costs.charging import Amounts

BUDGET_HOURS = 1.5
PAUSING = f"guards.budget={{device_hours: {BUDGET_HOURS}}}"
ASKING = f"gates.spending={{device_hours: {BUDGET_HOURS}}}"


def test_every_driver_counts_until_its_last_sign_of_life_with_the_devices_of_its_spec(tmp_path: Path) -> None:
    clock = SimulatedClock()
    small = spec(**VIRTUAL)
    large = spec(**VIRTUAL, rollout__engine__instances=4)
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        run = ledger.runs.create("toy", small.model_dump(mode="json"), small.digest, 9).id
        first = ledger.leases.acquire(run, holder("first"), 10)
        ledger.leases.start_session(first, "flow-run", "name")
        clock.advance(1800)
        ledger.leases.renew(first, 10)
        ledger.leases.end_session(first, "stopped")
        ledger.leases.release(first)
        clock.advance(3600)  # no driver
        keeper = ledger.leases.acquire(run, holder(f"{KEEPER} (pid 1 on here)"), 10)
        clock.advance(3600)
        ledger.leases.renew(keeper, 10)
        ledger.leases.release(keeper)
        killed = ledger.leases.acquire(run, holder("killed"), 10)
        clock.advance(3600)
        ledger.leases.renew(killed, 10)
        clock.advance(7200)
        changed = ledger.leases.acquire(run, holder("operator"), 10)
        ledger.runs.add_revision(changed, large.model_dump(mode="json"), large.digest, "more", 9)
        ledger.leases.release(changed)
        clock.advance(60)
        living = ledger.leases.acquire(run, holder("living"), 10)
        clock.advance(1800)
        ledger.leases.renew(living, 10)
        spent = spent_by(ledger, run)
        assert spent.wall_hours == pytest.approx(0.5 + 1.0 + 0.5)
        assert spent.device_hours == pytest.approx(2 * (0.5 + 1.0) + 4 * 0.5)
        assert wall_hours_of(ledger, run, before_term=living.term) == pytest.approx(1.5)


def test_a_keeper_holds_no_devices_even_if_it_was_killed(tmp_path: Path) -> None:
    clock = SimulatedClock()
    small = spec(**VIRTUAL)
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        run = ledger.runs.create("toy", small.model_dump(mode="json"), small.digest, 9).id
        keeper = ledger.leases.acquire(run, holder(f"{KEEPER} (pid 1 on here)"), 10)
        clock.advance(3600)
        ledger.leases.renew(keeper, 10)
        assert not held_spans(ledger, run)
        spent = spent_by(ledger, run)
    assert (spent.wall_hours, spent.device_hours) == (0.0, 0.0)


@pytest.mark.parametrize("limit", [PAUSING, ASKING])
def test_devices_count_only_while_a_run_that_waits_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    simulation = Simulation.of(tmp_path, "trainer.engine.ranks=2", "iterations=4", limit)
    outage = Outage(simulation, "learn", 40 * MINUTE)
    back = simulation.cluster.clock.monotonic() + 60 * MINUTE
    monkeypatch.setattr(BranchRunActors, "learn", lambda actors, *given: outage(actors, *given))
    monkeypatch.setattr(BranchRunActors, "answers", lambda *_: simulation.cluster.clock.monotonic() >= back)
    outcome = simulation.drive()
    assert outcome is not None and (outcome.state, outcome.reason) == ("completed", "target reached")
    with simulation.ledger() as ledger:
        spent = spent_by(ledger, simulation.run)
        charged = sum(total_charges(ledger, simulation.run).values(), Amounts())
    assert spent.device_hours == pytest.approx(float(charged.device_hours))
    assert spent.device_hours < BUDGET_HOURS < 2 * spent.wall_hours
