"""The promotion rule in the product's loop: candidates by a paired test, champions by approval, the same after any kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.cluster import DriverKilled
from db.core.approval_rules import APPROVED, REJECTED, WITHDRAWN
from db.ledger import Ledger
from db.write.aliases import CARRIED_OUT, Aliases, AliasMove, CheckpointKey
from db.write.approvals import ApprovalDecision, Approvals
from db.write.events import Events
from flows.gates.candidates import JUDGED
from flows.gates.promotions import champion_by_gate, settle
from flows.run.creation import current_spec
from tests.flows.simulated import BranchRunActors, Simulation
from tests.matrix import in_verify
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import EvaluateReceipt, TaskResult

TASKS = 10
RIGHT = {0: 2, 1: 2, 2: 8, 3: 9, 4: 3}
"""Number of tasks that each iteration answers; the later ones include those of the earlier ones."""
UNSCORED: dict[int, frozenset[int]] = {}
"""Tasks by iteration to which no answer has a score; none unless a test says so."""
RULE = ("evaluation.promotion={level: 0.05}", "evaluation.every=1", "checkpoints.every=1", "iterations=4")
GATE = "gates.promotion={names: [ann]}"


@pytest.fixture(autouse=True)
def _evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(self: Any, run: str, iteration: int, held_out: int, only: None = None) -> EvaluateReceipt:
        failed = UNSCORED.get(iteration, ())
        tasks = tuple(
            TaskResult(f"t{n}", 0, 0, 0, 0.0, unscored=1)
            if n in failed
            else TaskResult(f"t{n}", 0, 1, int(n < RIGHT[iteration]), 0.0)
            for n in range(TASKS)
        )
        return EvaluateReceipt(WorkKey(run, 0, iteration, "evaluate"), tasks, tuple(range(TASKS)), TASKS)

    monkeypatch.setattr(BranchRunActors, "evaluate", evaluate)


def facts(
    simulation: Simulation,
) -> tuple[list[tuple[str, int]], list[tuple[int, int, bool]], list[tuple[int, str | None]]]:
    """Returns the moves of aliases, the tests with what they were against, and the questions with their decisions."""
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        moves = [(move.alias, move.iteration) for move in ledger.aliases.history(simulation.run)]
        tests = [
            (link.body["checkpoint"]["iteration"], link.body["against"]["iteration"], link.body["beats"])
            for link in ledger.events.of_kind(simulation.run, JUDGED)
        ]
        asked = [(row.evidence["iteration"], row.decision) for row in ledger.approvals.of(simulation.run)]
    return moves, tests, asked


def test_what_beats_the_first_policy_becomes_candidate(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE)
    outcome = simulation.drive()
    assert outcome is not None and outcome.state == "completed"
    moves, tests, asked = facts(simulation)
    assert moves == [("candidate", 2), ("candidate", 3)] and asked == []
    assert tests == [(1, 0, False), (2, 0, True), (3, 0, True), (4, 0, False)]
    with simulation.ledger() as ledger:
        link = ledger.events.of_kind(simulation.run, JUDGED)[1]
        assert (link.body["wins"], link.body["losses"], link.body["p_value"]) == (6, 0, 1 / 64)


def test_a_candidate_is_judged_by_tasks_to_which_both_have_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {0: {0}, 1: set(range(TASKS)), 2: {6, 7}, 3: {0, 1}}
    for iteration, tasks in failed.items():
        monkeypatch.setitem(UNSCORED, iteration, frozenset(tasks))
    simulation = Simulation.of(tmp_path, *RULE)
    simulation.drive()
    moves, tests, _ = facts(simulation)
    assert moves == [("candidate", 3)]
    assert tests == [(2, 0, False), (3, 0, True), (4, 0, False)], "what has no score at all is not judged"
    with simulation.ledger() as ledger:
        bodies = [link.body for link in ledger.events.of_kind(simulation.run, JUDGED)]
    assert [(body["tasks"], body["wins"], body["losses"]) for body in bodies] == [(7, 4, 0), (8, 7, 0), (9, 1, 0)]


def test_a_champion_is_asked_for_and_becomes_the_one_to_beat(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE)
    simulation.drive(until=2)
    assert facts(simulation)[2] == [(2, None)], "the run does not wait for it"
    with simulation.ledger() as ledger:
        assert settle(ledger, simulation.run) == []
        ledger.approvals.decide(1, ApprovalDecision(APPROVED, "ann", "reads well", "cli"))
    simulation.drive()  # the driver carries it out
    moves, tests, asked = facts(simulation)
    assert moves == [("candidate", 2), ("champion", 2)]
    assert tests[2:] == [(3, 2, False), (4, 2, False)], "one task more is not significant"
    assert asked == [(2, APPROVED)]
    with simulation.ledger() as ledger:
        assert ledger.aliases.current(simulation.run)["champion"].why == "approval 1: reads well"


def test_a_rejected_candidate_stays_candidate(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE)
    simulation.drive(until=2)
    with simulation.ledger() as ledger:
        ledger.approvals.decide(1, ApprovalDecision(REJECTED, "ann", "too wordy", "cli"))
    simulation.drive()
    assert facts(simulation)[0] == [("candidate", 2), ("candidate", 3)]


def test_only_the_newest_candidate_waits_for_a_decision(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE)
    simulation.drive()
    assert facts(simulation)[2] == [(2, WITHDRAWN), (3, None)]


STEPS = ("promote", "ask", "append")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", [False, *in_verify(True)])
def test_a_driver_killed_at_any_step_of_a_promotion_leaves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, before: bool
) -> None:
    whole = Simulation.of(tmp_path / "whole", *RULE, GATE)
    whole.drive()
    killed = Simulation.of(tmp_path / "killed", *RULE, GATE)
    kind: Any = {"promote": Aliases, "ask": Approvals, "append": Events}[step]
    done = getattr(kind, step)
    died: list[int] = []

    def dying(self: Any, *given: Any, **named: Any) -> Any:
        if died or (step == "append" and given[1] != JUDGED):
            return done(self, *given, **named)
        died.append(1)
        if not before:
            done(self, *given, **named)
        raise DriverKilled

    with monkeypatch.context() as patch:
        patch.setattr(kind, step, dying)
        assert killed.drive() is None and died
    killed.drive()
    moves, tests, asked = facts(killed)
    assert (moves, sorted(set(tests)), asked) == facts(whole)


def checkpoint_of(ledger: Ledger, run: str, iteration: int) -> Any:
    return next(row for row in ledger.records.checkpoints(run) if row.iteration == iteration)


def test_a_person_who_may_decide_promotes_and_brings_the_former_one_back(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE, "checkpoints.keep=9")
    simulation.drive()
    run = simulation.run
    with simulation.ledger() as ledger:
        spec = current_spec(ledger, run)

        def promote(iteration: int, by: str) -> tuple[list[AliasMove], int | None]:
            verdict = ApprovalDecision(APPROVED, by, "better", "cli")
            return champion_by_gate(ledger, spec, run, checkpoint_of(ledger, run, iteration), verdict)

        moves, waits = promote(3, "bob")
        assert moves == [] and waits is not None
        assert promote(3, "bob") == ([], waits), "asking again is the same question"
        for iteration, alias_moves in ((3, 1), (2, 2), (3, 2)):
            moves, waits = promote(iteration, "ann")
            assert waits is None and len(moves) == alias_moves
            assert ledger.aliases.pointing(run)["champion"] == CheckpointKey(0, iteration, 1)
        assert promote(3, "ann") == ([], None)
        assert ledger.events.verify(run) is None


def test_an_approved_promotion_is_carried_out_once_even_if_it_moves_nothing(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE, "checkpoints.keep=9")
    simulation.drive(until=2)
    run = simulation.run
    with simulation.ledger() as ledger:
        two, one = (CheckpointKey(0, iteration, 1) for iteration in (2, 1))
        ledger.aliases.promote(run, "champion", two, "bob", "approval 99: by hand")
        ledger.approvals.decide(1, ApprovalDecision(APPROVED, "ann", "reads well", "cli"))
        assert settle(ledger, run) == [] and ledger.aliases.carried_out(run) == {1}
        ledger.aliases.promote(run, "champion", one, "bob", "approval 1: the way back")
        assert settle(ledger, run) == [] and ledger.aliases.pointing(run)["champion"] == one
        # Whoever read the approvals before another one carried them out finds it done.
        assert ledger.aliases.carry_out(run, 1, two, "ann", "late") == []
        assert len(ledger.events.of_kind(run, CARRIED_OUT)) == 1 and ledger.events.verify(run) is None


def test_a_promotion_of_a_checkpoint_that_is_not_kept_is_over(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE)
    simulation.drive(until=2)
    with simulation.ledger() as ledger:
        assert ledger.aliases.carry_out(simulation.run, 7, CheckpointKey(0, 9, 1), "ann", "better") == []
        (link,) = ledger.events.of_kind(simulation.run, CARRIED_OUT)
        assert link.body["approval"] == 7 and "never recorded" in link.body["obstacle"]


def test_a_reason_that_names_an_approval_does_not_carry_it_out(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE, "checkpoints.keep=9")
    simulation.drive(until=2)
    run = simulation.run
    with simulation.ledger() as ledger:
        ledger.aliases.promote(run, "candidate", CheckpointKey(0, 1, 1), "bob", "approval 1: forged")
        ledger.approvals.decide(1, ApprovalDecision(APPROVED, "ann", "reads well", "cli"))
        assert [move.iteration for move in settle(ledger, run)] == [2]


def test_one_question_about_a_checkpoint_is_open_whatever_is_decided_about_others(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *RULE, GATE, "checkpoints.keep=9")
    simulation.drive()
    run = simulation.run
    with simulation.ledger() as ledger:
        spec = current_spec(ledger, run)
        asked = ApprovalDecision(APPROVED, "bob", "better", "cli")
        first = champion_by_gate(ledger, spec, run, checkpoint_of(ledger, run, 2), asked)
        ledger.approvals.decide(2, ApprovalDecision(REJECTED, "ann", "too wordy", "cli"))
        assert champion_by_gate(ledger, spec, run, checkpoint_of(ledger, run, 2), asked) == first
