"""What a run has used, by its leases: of drivers that released them, were killed, or still hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.driver.spending import spent_by
from flows.run.lease import KEEPER
from tests.db.tools import SimulatedClock, holder
from tests.spec.trees import VIRTUAL, spec


def test_every_driver_counts_until_its_last_sign_of_life_with_the_devices_of_its_spec(tmp_path: Path) -> None:
    clock = SimulatedClock()
    small = spec(**VIRTUAL)
    large = spec(**VIRTUAL, rollout__engine__instances=4)
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        run = ledger.runs.create("toy", small.model_dump(mode="json"), small.digest, 9).id
        first = ledger.leases.acquire(run, holder("first"), 10)
        clock.advance(1800)
        ledger.leases.renew(first, 10)
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
        before = spent_by(ledger, run, before_term=living.term)
        assert before.wall_hours == pytest.approx(1.5)
