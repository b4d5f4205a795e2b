"""A recorded decision is obeyed, whatever the policy would decide now and whichever version recorded it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.records import DecisionRow
from flows.phases import lending
from flows.phases.placement import begin_planning, decide, keep_work, record_outcome
from flows.placement.prefetch import PlacementPrefetch
from flows.run.home import Home
from tests.ops.seeding import commit_of
from tests.placement.recorded_run import DecidingSession, judged_spec
from tests.placement.workloads import small
from yatt_core.actors.dispatcher import PlacementReport
from yatt_core.errors import ConfigurationError
from yatt_core.placement.lending import Levelled, MeasuredIteration, lending_to_json
from yatt_core.placement.policies.curve import CurvePolicy
from yatt_core.placement.policies.fixed import Hold, InTurn, SplitPool
from yatt_core.placement.seen import Plan
from yatt_core.placement.simulation.campaign import run_campaign


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    home = Home(tmp_path / "runs")
    spec = judged_spec()
    home.folder.mkdir()
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, spec.iterations).id
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        ledger.commits.commit(fence, commit_of(0))
        yield DecidingSession(home, ledger, fence, spec)


class Wrong:
    def __init__(self, answer: str | BaseException) -> None:
        self._answer = answer

    def plan(self, *_: Any) -> Plan:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return Plan(self._answer, Hold(), None, "wrong")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ZeroDivisionError("by hand"), "ZeroDivisionError: by hand"),
        (SystemExit("done"), "SystemExit: done"),
        ("RR", "'RR'.* 4 "),
        ("RRRX", "RRRX"),
    ],
)
def test_a_failing_policy_is_reported_before_anything_is_recorded(
    session: Any, answer: str | BaseException, said: str
) -> None:
    session.prefetch = PlacementPrefetch(Wrong(answer))
    with pytest.raises(ConfigurationError, match=f"placement.mode: .*{said}"):
        decide(session, 1, {})
    assert session.context.ledger.records.decisions(session.context.run, 0, 1) == []


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (None, r"NoneType.*\bPlan\b"),
        ("RRRR", r"\bstr\b.*\bPlan\b"),
        (Plan(["R"] * 4, Hold(), None, "a list"), r"\['R', .* 4 "),  # type: ignore[arg-type]
        (Plan("RRRR", Hold(), float("nan"), "not a number"), r"\bnan\b"),
        (Plan("RRRR", Hold(), "soon", "no number"), "'soon'"),  # type: ignore[arg-type]
        (Plan("RRRR", None, None, "nobody acts"), "runtime policy.*`act`"),  # type: ignore[arg-type]
        (Plan("RRRR", Hold(), None, None), "reason"),  # type: ignore[arg-type]
        (Plan("RRRR", Hold(), None, "", {"seen": {1}}), "state.*TypeError"),
        (Plan("RRRR", Hold(), None, "", {"mean": float("inf")}), "state.*ValueError"),
        (Plan("RRRR", Hold(), None, "", 5), "state.*TypeError"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_plan_is_reported_before_anything_is_recorded(session: Any, plan: Any, said: str) -> None:
    class Nonsense:
        def plan(self, *_: Any) -> Any:
            return plan

    session.prefetch = PlacementPrefetch(Nonsense())
    with pytest.raises(ConfigurationError, match=f"placement.mode: .*{said}"):
        decide(session, 1, {})
    assert session.context.ledger.records.decisions(session.context.run, 0, 1) == []


class Locked:
    """A runtime policy that holds a lock, which cannot leave its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def act(self, *_: Any) -> list[Any]:
        return []


def test_a_runtime_policy_that_cannot_be_pickled_is_reported_before_anything_is_recorded(session: Any) -> None:
    class Own:
        def plan(self, *_: Any) -> Plan:
            return Plan("RRRR", Locked(), None, "")

    session.prefetch = PlacementPrefetch(Own())
    with pytest.raises(ConfigurationError, match=r"placement.mode: .*runtime policy.*TypeError: .*lock"):
        decide(session, 1, {})
    assert session.context.ledger.records.decisions(session.context.run, 0, 1) == []


def record(session: Any, decision: dict[str, Any]) -> None:
    session.context.ledger.records.decision(session.context.fence, DecisionRow(0, 1, 0, {}, decision, {}, "as it was"))


def test_a_new_decision_is_kept_when_made_again(session: Any) -> None:
    placement, runtime_policy = decide(session, 1, {})
    row = placement.decision
    assert isinstance(runtime_policy, CurvePolicy) and len(row.decision["start"]) == 4
    placement, runtime_policy = decide(session, 1, {})
    again = placement.decision
    assert again.decision == row.decision and isinstance(runtime_policy, CurvePolicy)


def test_a_different_recorded_decision_is_obeyed_unchanged(session: Any) -> None:
    record(session, {"mode": "dynamic", "start": "RJJJ", "roles": {}, "state": {"kept": 1}})
    placement, runtime_policy = decide(session, 1, {})
    row = placement.decision
    assert (row.decision["start"], row.decision["state"], row.reason) == ("RJJJ", {"kept": 1}, "as it was")
    assert isinstance(runtime_policy, Hold)


def test_a_decision_from_before_judges_shared_devices_makes_all_of_them_roll_out(session: Any) -> None:
    record(session, {"mode": "colocate", "roles": {"collect": ["rollout-0"]}})
    placement, runtime_policy = decide(session, 1, {})
    row = placement.decision
    assert (row.decision["start"], row.decision["state"]) == ("RRRR", {})
    assert row.decision["roles"] == {"collect": ["rollout-0"]} and isinstance(runtime_policy, Hold)


class Noting:
    """A policy whose state contains values that JSON cannot represent, and which modifies its input."""

    def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
        seen = state.setdefault("seen", [])
        seen.append(len(seen))
        return Plan("RRRJ", InTurn(), None, "why \ud800 not\x1b[2J", {"seen": seen, "pair": (1, 2), "by": {3: 4}})


def test_a_policy_remembers_only_what_the_ledger_recorded(session: Any) -> None:
    session.prefetch = PlacementPrefetch(Noting())
    state = {"seen": [7]}
    placement, runtime_policy = decide(session, 1, state)
    row = placement.decision
    assert not isinstance(runtime_policy, Hold), "a new decision is in force as it was made"
    assert row.decision["state"] == {"seen": [7, 1], "pair": [1, 2], "by": {"3": 4}}
    assert row.inputs["state"] == state == {"seen": [7]}, "its inputs are recorded as they were given"
    (recorded,) = session.context.ledger.records.decisions(session.context.run, 0, 1)
    assert (recorded.decision, recorded.reason) == (row.decision, "why \\ud800 not\\x1b[2J")


def test_the_first_decision_is_planned_while_the_actors_start(session: Any) -> None:
    planned = list[str]()

    class Counted(Noting):
        def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
            planned.append(threading.current_thread().name)
            return super().plan(setting, past, state)

    session.prefetch = PlacementPrefetch(Counted())
    begin_planning(session, 1, {})
    assert session.prefetch.expected(1) is not None and session.prefetch.expected(2) is None
    decide(session, 1, {})
    assert planned == ["placement"], "the plan that was begun is taken"


def test_without_a_lag_the_next_plan_is_made_while_the_trainer_learns(session: Any) -> None:
    may_plan = threading.Event()
    planned = list[int]()

    class Slow(Noting):
        def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
            assert not past or may_plan.wait(60)
            planned.append(len(past))
            return super().plan(setting, past, state)

    context = session.context
    context.folder.mkdir()
    session.prefetch = PlacementPrefetch(Slow())
    session.usage = tuple
    session.placement_report = lambda: PlacementReport(2.0, 0.5, [])
    placement, _ = decide(session, 1, {})
    work = keep_work(session, 1, placement, [])
    assert planned == [0], "what follows collect does not wait for the plan"
    record_outcome(context, 1, {"learn": 1.0}, work)
    context.ledger.commits.commit(context.fence, commit_of(1))
    may_plan.set()
    decide(session, 2, placement.decision.decision["state"])
    assert planned == [0, 1], "the plan that was begun behind learning is the one that is taken"
    (second,) = context.ledger.records.decisions(context.run, 0, 2)
    context.ledger.records.decision(context.fence, replace(second, iteration=6))
    _, runtime_policy = decide(session, 6, {})
    assert planned == [0, 1, 1] and not isinstance(runtime_policy, Hold), "of the past, what a recorded decision names"


def test_a_plan_knows_how_long_the_trainer_learnt_on_the_devices_that_it_lends(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float | None]] = []

    class Seeing:
        def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
            seen.append((setting.lent, setting.lent_after_s))
            return Plan("RRRJ", InTurn(), None, "", {})

    session = lending_session(session)
    session.prefetch = PlacementPrefetch(Seeing())
    decide(session, 1, {})
    factor = session.context.spec.rollout.engine.clock_factor
    measure(monkeypatch, idle_s=9.0)
    begin_planning(session, 2, {})
    decide(session, 2, {})
    # The plan of the next iteration is begun with what was decided for the one before.
    assert seen[:2] == [(2, 0.0), (2, 0.0)], "nothing was measured yet"
    assert seen[2:4] == [(2, 1.5 * factor)] * 2
    (row,) = session.context.ledger.records.decisions(session.context.run, 0, 2)
    assert row.inputs["setting"]["lent_after_s"] == 1.5 * factor
    measure(monkeypatch, idle_s=0.0)
    begin_planning(session, 3, {})
    session.prefetch.plan(3, session.prefetch.expected(3), 60.0)
    assert seen[-1] == (2, None), "lending brings nothing, so that the trainer keeps its devices"


def measure(monkeypatch: pytest.MonkeyPatch, idle_s: float, learning_s: float = 1.5) -> None:
    """Lets the newest iteration have learnt for some seconds. idle_s: how long the trainer then waited."""
    measured = MeasuredIteration(learning_s=learning_s, idle_s=idle_s, busy=1.0, lent=True)
    inputs = lending_to_json(own=2, lent=2, measured=measured, cost_s=0.5)
    monkeypatch.setattr(lending, "_inputs", lambda *_: inputs)


def test_with_a_lag_the_next_plan_is_made_while_an_iteration_is_collected(session: Any) -> None:
    """Nothing is learnt between two iterations' experience, behind which the plan could be made."""
    session.context = replace(session.context, spec=judged_spec("asynchrony.lag=1"))
    (telemetry,) = run_campaign(small().model_copy(update={"iterations": 1}), SplitPool(1)).past
    planned: list[tuple[int, dict[str, Any]]] = []

    class Seeing:
        def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
            planned.append((len(past), state))
            return Plan("RRRJ", InTurn(), None, "", {"plans": state.get("plans", 0) + 1})

    session.prefetch = PlacementPrefetch(Seeing())
    for iteration in (1, 2, 3):
        decide(session, iteration, {})
        assert session.prefetch.expected(iteration + 1) is not None
        session.prefetch.note(telemetry, {"run": "judged-1", "branch": 0, "iteration": iteration, "sha256": "a"})
    decide(session, 4, {})
    assert planned[:4] == [(0, {}), (0, {"plans": 1}), (1, {"plans": 2}), (2, {"plans": 3})]
    (third,) = session.context.ledger.records.decisions(session.context.run, 0, 3)
    assert [name["iteration"] for name in third.inputs["past"]] == [1], "what it was planned from is recorded"


def lending_session(session: Any) -> Any:
    changes = ("asynchrony.lag=1", "placement.trainer=lent", "rollout.engine.instances=4")
    session.context = replace(session.context, spec=judged_spec(*changes))
    return session


def test_a_decision_says_whether_the_trainers_devices_are_lent_and_why(session: Any) -> None:
    placement, runtime_policy = decide(lending_session(session), 1, {})
    row = placement.decision
    assert placement.lends and row.decision["lent"] == [0, 1] and isinstance(runtime_policy, Levelled)
    assert row.reason.endswith("nothing was measured yet") and row.inputs["lending"]["measured"] is None
    assert row.inputs["lending"]["own"] == 2 and row.inputs["lending"]["cost_s"] > 0


def test_a_recorded_decision_about_lending_is_repeated_from_its_own_inputs(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = MeasuredIteration(learning_s=1.0, idle_s=0.0, busy=1.0, lent=True)
    kept = lending_to_json(own=2, lent=2, measured=measured, cost_s=0.5)
    monkeypatch.setattr(lending, "_inputs", lambda *_: kept)
    placement, runtime_policy = decide(lending_session(session), 1, {})
    assert not placement.lends and placement.decision.decision["lent"] == []
    assert "the trainer keeps its devices" in placement.decision.reason
    monkeypatch.setattr(lending, "_inputs", lambda *_: pytest.fail("more may have been committed since"))
    again, same = decide(session, 1, {})
    assert again.decision == placement.decision and type(same) is type(runtime_policy) is CurvePolicy


def test_what_was_measured_counts_in_the_drivers_seconds(session: Any) -> None:
    spec = lending_session(session).context.spec
    factor = spec.rollout.engine.clock_factor
    figures = {
        "devices/0/rollout_seconds": 99.0,
        "devices/2/rollout_seconds": 2.0 * factor,
        "devices/2/judge_seconds": 1.0 * factor,
        "devices/3/rollout_seconds": 1.0 * factor,
    }
    found = lending._measured(spec, {"prepare": 0.5, "learn": 1.5, "collect_ahead": 2.0}, figures, lent=True)
    assert found == MeasuredIteration(learning_s=2.0, idle_s=2.0, busy=0.5, lent=True)


class Expecting:
    """A policy whose roles depend on when lent instances are expected, and on how many moved sequences they take."""

    def __init__(self) -> None:
        self.planned = 0

    def plan(self, setting: Any, past: Any, state: dict[str, Any]) -> Plan:
        self.planned += 1
        roles = "RRRR" if setting.lent_after_s is None else "RRRJ" if setting.lent_after_s else "RRJJ"
        return Plan(roles, InTurn(), None, "", {"lent_after_s": setting.lent_after_s, "moved": setting.moved})


def test_a_decision_that_was_planned_ahead_is_planned_again_from_its_own_inputs(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lending_session(session)
    session.prefetch = PlacementPrefetch(Expecting())
    decide(session, 1, {})
    measure(monkeypatch, idle_s=9.0)
    first, _ = decide(session, 2, {})
    assert first.decision.inputs["setting"]["lent_after_s"] == 0.0, "its plan was begun before anything was measured"
    third, _ = decide(session, 3, {})
    policy = Expecting()
    session.prefetch = PlacementPrefetch(policy)
    measure(monkeypatch, idle_s=7.0, learning_s=2.5)
    begin_planning(session, 2, {})
    again, runtime_policy = decide(session, 2, {})
    assert isinstance(runtime_policy, Levelled) and again.decision.decision == first.decision.decision
    same, runtime_policy = decide(session, 3, {})
    assert isinstance(runtime_policy, Levelled) and same.decision.decision == third.decision.decision
    session.prefetch.plan(4, session.prefetch.expected(4), session.deadline)
    assert policy.planned == 3, "each plan that was begun is the one that is taken"


def test_a_plan_that_was_begun_for_the_other_decision_about_lending_is_made_anew(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lending_session(session)
    session.prefetch = PlacementPrefetch(Expecting())
    decide(session, 1, {})
    measure(monkeypatch, idle_s=0.0)
    placement, _ = decide(session, 2, {})
    assert not placement.lends and placement.decision.inputs["setting"]["lent_after_s"] is None
    assert placement.decision.decision["start"] == "RRRR"


@pytest.mark.parametrize(("speeds", "held"), [([1.0] * 4, False), ([1.0] * 3, True)])
def test_an_earlier_versions_count_of_moved_sequences_does_not_change_its_plan(
    session: Any, speeds: list[float], held: bool
) -> None:
    session.prefetch = PlacementPrefetch(Expecting())
    made, _ = decide(session, 1, {})
    inputs = made.decision.inputs
    inputs = {**inputs, "setting": {**inputs["setting"], "moved": 32, "speeds": speeds}}
    decision = {**made.decision.decision, "state": {**made.decision.decision["state"], "moved": 32}}
    records = session.context.ledger.records
    records.decision(session.context.fence, DecisionRow(0, 2, 0, inputs, decision, {}, "of another version"))
    session.prefetch.forget()
    again, runtime_policy = decide(session, 2, {})
    assert isinstance(runtime_policy, Hold) == held, "a pool of other instances is planned as it is"
    assert again.decision.decision["state"]["moved"] == 32


def test_with_a_lag_the_plan_behind_an_iteration_begins_from_what_is_recorded_for_the_next(session: Any) -> None:
    session.context = replace(session.context, spec=judged_spec("asynchrony.lag=1"))
    policy = Expecting()
    session.prefetch = PlacementPrefetch(policy)
    made, _ = decide(session, 1, {})
    setting = {**made.decision.inputs["setting"], "moved": 32}
    recorded = replace(made.decision, iteration=2, inputs={**made.decision.inputs, "setting": setting})
    recorded = replace(recorded, decision={**recorded.decision, "state": {"lent_after_s": 0.0, "moved": 32}})
    session.context.ledger.records.decision(session.context.fence, recorded)
    session.prefetch.plan(2, session.prefetch.expected(2), session.deadline)
    policy.planned = 0
    decide(session, 1, {})
    _, runtime_policy = decide(session, 2, {})
    session.prefetch.plan(3, session.prefetch.expected(3), session.deadline)
    assert isinstance(runtime_policy, InTurn) and policy.planned == 3, (
        "the plan that was begun is the one that is taken"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speeds": 4}, "TypeError"),
        ({"of_later": 1}, "TypeError"),
        ({"switch": {"of_later": 1}}, "of_later: Extra inputs"),
        (None, "KeyError"),
    ],
)
def test_a_setting_that_only_another_version_knows_leads_to_what_is_known_now(
    session: Any, caplog: pytest.LogCaptureFixture, change: dict[str, Any] | None, said: str
) -> None:
    session.prefetch = PlacementPrefetch(Expecting())
    made, _ = decide(session, 1, {})
    setting = {} if change is None else {**made.decision.inputs["setting"], **change}
    inputs = {**made.decision.inputs, "setting": setting}
    records = session.context.ledger.records
    records.decision(session.context.fence, replace(made.decision, iteration=2, inputs=inputs))
    decision = {**made.decision.decision, "start": "RJJJ"}
    records.decision(session.context.fence, replace(made.decision, iteration=3, inputs=inputs, decision=decision))
    with caplog.at_level("WARNING", "yatt_core.flow"):
        _, as_it_was = decide(session, 2, {})
    assert isinstance(as_it_was, InTurn), "the policy of now decides the same"
    assert re.search(f"what is known now: .*not one of this version.*{said}", caplog.text)
    placement, held = decide(session, 3, {})
    assert placement.decision.decision["start"] == "RJJJ" and isinstance(held, Hold)
