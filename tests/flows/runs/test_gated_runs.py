"""Gates in whole runs with kills: the bits of an undisturbed run."""

from __future__ import annotations

import pytest

from db.core.approval_rules import APPROVED
from db.write.approvals import ApprovalDecision
from tests.flows.tools import Driver, same_result

SHORT = ("iterations=3", "evaluation.every=0")


def approve(driver: Driver, number: int) -> None:
    with driver.ledger() as ledger:
        ledger.approvals.decide(number, ApprovalDecision(APPROVED, "ann", "fine", "cli"))


@pytest.mark.verify
@pytest.mark.parametrize("moment", ["commit:2", "checkpoint:2", "place:3"])
def test_a_gated_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(driver: Driver, moment: str) -> None:
    plain = driver.create("virtual.yaml", "name=plain", *SHORT, "checkpoints.every=1")
    driver.drive(plain)
    gated = driver.create("virtual.yaml", "name=gated", *SHORT, "checkpoints.every=1", "gates.iterations.every=2")
    if moment != "place:3":
        driver.drive_until_killed(gated, moment)
        driver.end_actors(gated)
    said = driver.drive(gated, expect=4)
    assert "waits for approval 1" in said
    driver.drive(gated, expect=4)
    approve(driver, 1)
    if moment == "place:3":
        driver.drive_until_killed(gated, moment)
        driver.end_actors(gated)
    driver.drive(gated)
    assert same_result(driver.results(plain), driver.results(gated))
    with driver.ledger() as ledger:
        assert len(ledger.approvals.of(gated)) == 1 and ledger.events.verify(gated) is None
