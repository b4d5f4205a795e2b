"""Gates in the product's loop with simulated actors: a run waits, goes on or ends as people decide, with and without kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.core.approval_rules import APPROVED, REJECTED, WITHDRAWN, Approval
from db.write.approvals import ApprovalDecision
from flows.branching.branches import revise, rollback
from flows.driver.run_status import SessionOutcome
from flows.gates.waiting import awaited, may_go_on
from flows.run.results import RunResults, run_results
from tests.flows.simulated import Simulation
from tests.flows.tools import same_result
from tests.matrix import in_verify

SHORT = ("iterations=5", "checkpoints.every=100")
EVERY_2 = "gates.iterations={every: 2}"
SPIKE = "guards.custom=[{name: spike, metric: grad_norm, at_most: 2.5, window: 1, action: rollback}]"


def approvals(simulation: Simulation) -> list[Approval]:
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        return ledger.approvals.of(simulation.run)


def decide(simulation: Simulation, number: int, decision: str) -> None:
    with simulation.ledger() as ledger:
        ledger.approvals.decide(number, ApprovalDecision(decision, "ann", "looked at it", "cli"))


def results(simulation: Simulation) -> RunResults:
    with simulation.ledger() as ledger:
        return run_results(ledger, simulation.run)


def ended(outcome: SessionOutcome | None) -> tuple[str, int, int]:
    assert outcome is not None
    return outcome.state, outcome.iteration, outcome.exit_code


@pytest.mark.parametrize("killed_at", ["commit:2", *in_verify("", "committed:2", "place:3")])
def test_a_run_waits_at_its_gates_and_ends_with_the_bits_of_a_run_without(tmp_path: Path, killed_at: str) -> None:
    plain = Simulation.of(tmp_path / "plain", *SHORT)
    assert ended(plain.drive()) == ("completed", 5, 0)
    gated = Simulation.of(tmp_path / "gated", EVERY_2, *SHORT)
    if killed_at in ("committed:2", "commit:2"):
        assert gated.drive(killed_at) is None
    outcome = gated.drive()
    assert outcome is not None and ended(outcome) == ("paused", 2, 4)
    assert outcome.reason.startswith("waits for approval 1: continue after iteration 2 of branch 0")
    with gated.ledger() as ledger:
        assert ledger.records.checkpoints(gated.run)[0].iteration == 2, "a gate leaves a checkpoint"
    again = gated.drive()
    assert ended(again) == ("paused", 2, 4) and len(approvals(gated)) == 1, "a resume waits too, and asks nothing anew"
    decide(gated, 1, APPROVED)
    if killed_at == "place:3":
        assert gated.drive(killed_at) is None
    assert ended(gated.drive()) == ("paused", 4, 4)
    decide(gated, 2, APPROVED)
    assert ended(gated.drive()) == ("completed", 5, 0)
    assert [(row.kind, row.evidence["iteration"]) for row in approvals(gated)] == [("iterations", 2), ("iterations", 4)]
    assert same_result(results(plain), results(gated))


def test_a_rejected_run_stops_until_it_goes_elsewhere(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, EVERY_2, *SHORT)
    simulation.drive()
    decide(simulation, 1, REJECTED)
    for _ in range(2):
        outcome = simulation.drive()
        assert outcome is not None and ended(outcome) == ("stopped", 2, 0)
        assert "approval 1 was rejected by ann: looked at it" in outcome.reason
    rollback(simulation.home, simulation.run, 1, "by ann")
    assert ended(simulation.drive()) == ("paused", 2, 4)
    assert [row.key for row in approvals(simulation)] == ["iterations-b0-i2", "iterations-b1-i2"]


def test_the_deadline_decides_for_the_next_resume(tmp_path: Path) -> None:
    gate = "gates.iterations={every: 2, deadline_hours: 1, default: approve, names: [ann]}"
    simulation = Simulation.of(tmp_path, gate, "iterations=3", "checkpoints.every=100")
    assert ended(simulation.drive()) == ("paused", 2, 4)
    with simulation.ledger() as ledger:
        assert not may_go_on(ledger, simulation.run)
    simulation.cluster.clock.sleep(3600)
    with simulation.ledger() as ledger:
        assert may_go_on(ledger, simulation.run)
        approval = awaited(ledger, simulation.run)
        assert approval is not None and (approval.decision, approval.decided_by) == (APPROVED, "deadline")
    assert ended(simulation.drive()) == ("completed", 3, 0)


def test_a_rollback_by_a_guard_waits_for_approval(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, SPIKE, "gates.rollback={}", "iterations=8", "checkpoints.every=2")
    outcome = simulation.drive()
    assert outcome is not None and (outcome.state, outcome.exit_code) == ("paused", 4)
    (asked,) = approvals(simulation)
    assert asked.key == "rollback-b1" and "guard spike" in asked.question
    decide(simulation, 1, APPROVED)
    following = simulation.drive()
    assert following is not None
    assert [row.key for row in approvals(simulation)][1:2] in ([], ["rollback-b2"]), "each branch is asked about once"


def test_spending_is_asked_about_at_each_amount(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, "gates.spending={device_hours: 0.02}", *SHORT)
    keys = []
    while (outcome := simulation.drive()) is not None and outcome.state == "paused":
        number = approvals(simulation)[-1].id
        keys.append(approvals(simulation)[-1].key)
        decide(simulation, number, APPROVED)
    assert outcome is not None and outcome.state == "completed"
    assert keys and len(set(keys)) == len(keys) and all(key.startswith("spending-0.") for key in keys)


def test_a_question_that_the_spec_no_longer_asks_is_withdrawn(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, EVERY_2, *SHORT)
    simulation.drive()
    revise(simulation.home, simulation.run, ["gates.iterations=null"])
    assert ended(simulation.drive()) == ("completed", 5, 0)
    assert [row.decision for row in approvals(simulation)] == [WITHDRAWN]


def test_a_run_that_is_paused_for_another_reason_waits_at_no_gate(tmp_path: Path) -> None:
    pausing = "guards.custom=[{name: any, metric: reward/mean, at_most: -1.0, window: 2, action: pause}]"
    simulation = Simulation.of(tmp_path, pausing, "iterations=3")
    simulation.drive()
    with simulation.ledger() as ledger:
        assert awaited(ledger, simulation.run) is None and not may_go_on(ledger, simulation.run)


def test_a_gate_whose_question_was_withdrawn_asks_again_when_the_run_stands_there(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, EVERY_2, "iterations=3", "checkpoints.every=100")
    simulation.drive()
    for number in (1, 2):
        with simulation.ledger() as ledger:
            ledger.approvals.withdraw(number, "the spec had no such gate for a while")
        assert ended(simulation.drive()) == ended(simulation.drive()) == ("paused", 2, 4)
    assert [row.key.removeprefix("iterations-b0-i2") for row in approvals(simulation)] == ["", "-again2", "-again3"]
    decide(simulation, 3, APPROVED)
    assert ended(simulation.drive()) == ("completed", 3, 0)
