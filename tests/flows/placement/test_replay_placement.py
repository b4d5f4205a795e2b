"""Recorded decisions are reproducible, tampering is named, and estimated costs of other policies are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from db.write.runs import Parent
from flows.placement import replay as module
from flows.placement.record import PlacementRecord
from flows.placement.replay import PolicyComparison, ReplayedDecision, compare_all, parse_policy, replay
from flows.placement.work_files import work_file
from flows.run.home import Home
from tests.placement.recorded_run import judged_spec, record_run, rewrite
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import Action
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import IterationTelemetry, Plan, Setting
from yatt_core.spec.sections.placement import PlacementSpec

MODES = {
    "colocate": ("placement.mode=colocate",),
    "split": ("placement.mode=split", "placement.judges=1"),
    "dynamic": ("placement.mode=dynamic",),
    "dynamic, fitted": ("placement.mode=dynamic", "rollout.engine.max_num_seqs=null"),
}
WAVES = {"dynamic_sampling": True, "validity": 0.5}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


@pytest.fixture(scope="module")
def dynamic_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Records six iterations of `dynamic` and a seventh in progress."""
    home = Home(tmp_path_factory.mktemp("recorded") / "runs")
    record_run(home, judged_spec(*MODES["dynamic"]), iterations=6, under_way=True)
    return home


@pytest.fixture
def dynamic(home: Home, dynamic_home: Home) -> str:
    """Copies the run of `dynamic_home` to the test's own home, and returns its name."""
    shutil.copytree(dynamic_home.folder, home.folder)
    return "judged-1"


@contextmanager
def recorded(home: Home, run: str) -> Iterator[PlacementRecord]:
    with Ledger.open(home.ledger, migrate=False) as ledger:
        yield PlacementRecord(ledger, home, run)


def replayed(home: Home, run: str) -> list[ReplayedDecision]:
    with recorded(home, run) as record:
        return [replay(placement) for placement in record.between(1, record.last)]


def compared(home: Home, run: str, policy: str, first: int = 1) -> PolicyComparison:
    with recorded(home, run) as record:
        return compare_all(run, policy, record.between(first, record.last))


@pytest.mark.parametrize(
    ("mode", "samples"), [("colocate", WAVES), ("split", {}), ("dynamic", WAVES), ("dynamic, fitted", {})]
)
def test_the_same_policy_makes_the_recorded_decisions(home: Home, mode: str, samples: dict[str, object]) -> None:
    run = record_run(home, judged_spec(*MODES[mode]), under_way=True, **samples)
    rows = replayed(home, run)
    assert [(row.iteration, row.same, row.why) for row in rows] == [(number, True, ()) for number in range(1, 6)]
    assert all(row.replayed == row.recorded and len(row.recorded) == 4 for row in rows)
    assert [row.collect_s is None for row in rows] == [False] * 4 + [True]


def test_a_changed_state_is_noticed_where_it_matters(home: Home, dynamic: str) -> None:
    run = dynamic
    rewrite(home, run, 2, "decision", lambda decision: decision["state"]["knobs"].update(power=9.0))
    rewrite(home, run, 3, "decision", lambda decision: decision.update(start="JJJR"))
    rows = {row.iteration: row for row in replayed(home, run)}
    assert [number for number, row in rows.items() if not row.same] == [2, 3]
    assert '"power": 9.0' in rows[2].why[0] and rows[2].why[0].startswith("state: recorded")
    assert rows[3].why[0].startswith("roles: recorded JJJR, now ")


def test_a_changed_or_lost_file_is_named_wherever_it_was_used(home: Home, dynamic: str) -> None:
    run = dynamic
    changed, gone = (work_file(home.run_folder(run), 0, number) for number in (1, 2))
    changed.write_text(changed.read_text().replace("[1", "[2", 1))
    gone.unlink()
    rows = replayed(home, run)
    # Iteration 6 remembers 2 to 5, 7 remembers 3 to 6, and iteration 1 nothing.
    assert [row.same for row in rows] == [True, *[False] * 5, True]
    assert [row.replayed for row in rows[1:6]] == [None] * 5
    assert len(rows[1].why) == 1 and rows[1].why[0].startswith(f"{changed} ") and "sha256" in rows[1].why[0]
    assert len(rows[2].why) == 2 and [why for why in rows[2].why if why.startswith(f"{gone} ") and "sha256" not in why]
    assert len(rows[5].why) == 1 and rows[5].why[0].startswith(f"{gone} ") and "sha256" not in rows[5].why[0]


def test_the_estimated_cost_of_another_policy_equals_its_real_cost(home: Home) -> None:
    """Predicts one policy's cost from the record of a run under another, and compares it with a run under the first.

    The two agree because the work does not depend on the policy.
    """
    modes = {"colocate": "colocate", "split:1": "split", "dynamic": "dynamic"}
    runs = {policy: record_run(home, judged_spec(*MODES[mode]), iterations=3) for policy, mode in modes.items()}
    own = {policy: replayed(home, run) for policy, run in runs.items()}
    for record, policy in (
        ("colocate", "dynamic"),
        ("colocate", "split:1"),
        ("split:1", "colocate"),
        ("dynamic", "colocate"),
    ):
        found = compared(home, runs[record], policy)
        assert [row.start for row in found.rows] == [row.recorded for row in own[policy]]
        assert [row.other_s for row in found.rows] == [row.collect_s for row in own[policy]]
        assert [row.recorded_s for row in found.rows] == [row.collect_s for row in own[record]]
        assert found.ratio == found.other_s / found.recorded_s != 1.0
        assert found.differing == () and found.iterations == 3


def test_the_recorded_policy_continues_with_its_state(home: Home, dynamic: str) -> None:
    run = dynamic
    found = compared(home, run, "dynamic", first=3)
    assert all(row.same for row in found.rows) and found.ratio == 1.0
    rewrite(home, run, 4, "decision", lambda decision: decision.update(start="RRRR"))
    found = compared(home, run, "dynamic", first=3)
    assert found.differing == (4,) and found.rows[1].recorded_s is None and found.rows[1].why
    assert found.iterations == 3, "totals cover iterations known for both"


def test_lost_inputs_and_lost_work_are_reported_and_left_out(home: Home, dynamic: str) -> None:
    work_file(home.run_folder(dynamic), 0, 5).unlink()
    found = compared(home, dynamic, "colocate")
    assert [(row.other_s is None, bool(row.why)) for row in found.rows] == [(False, False)] * 4 + [(True, True)] * 3
    assert found.rows[4].start == "RRRR" and found.rows[5].start is None
    assert found.iterations == 4


def test_a_fork_replays_what_it_inherited(home: Home, dynamic: str) -> None:
    spec = judged_spec(*MODES["dynamic"])
    with Ledger.open(home.ledger) as ledger:
        parent = Parent(dynamic, 0, 3)
        fork = ledger.runs.create("fork", spec.model_dump(mode="json"), spec.digest, 9, parent=parent).id
    rows = replayed(home, fork)
    assert [(row.iteration, row.same) for row in rows] == [(1, True), (2, True), (3, True)]
    with recorded(home, fork) as record:
        assert record.at(3).run == dynamic and record.at(3).work is not None


def test_constants_that_engines_do_not_report_come_from_telemetry(home: Home) -> None:
    """The engines are three times slower than the recorded setting says."""
    run = record_run(home, judged_spec(*MODES["dynamic, fitted"]), slower=3.0)
    for row in compared(home, run, "split:1").rows:
        assert row.recorded_s == pytest.approx(row.collect_s, rel=0.3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("split", r"split:N\b.* 1 to 3\b"),
        ("split:4", r"split:N\b.* 1 to 3\b"),
        ("split:0", r"split:N\b.* 1 to 3\b"),
        ("split:-1", r"split:N\b.* 1 to 3\b"),
        ("dynamic:2", "colocate, split:N, dynamic"),
        ("", "colocate, split:N, dynamic"),
        ("Dynamic", "colocate, split:N, dynamic"),
    ],
)
def test_invalid_policy_names(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--policy '{text}': .*{says}"):
        parse_policy(text, 4)


def test_policies_are_named_as_in_a_spec() -> None:
    assert parse_policy("split:3", 4) == PlacementSpec(mode="split", judges=3)
    assert parse_policy("my-own", 4) == PlacementSpec(mode="my-own")


def test_an_unknown_policy_is_refused(home: Home) -> None:
    run = record_run(home, judged_spec(*MODES["colocate"]), iterations=1)
    with pytest.raises(ConfigurationError, match=r"'dynamc'.*colocate, split, dynamic"):
        compared(home, run, "dynamc")


class Stubborn:
    """A policy whose runtime policy fails from the second iteration on."""

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        return Plan("RRRJ", self if past else Hold(), None, "stubborn")

    def act(self, *_: Any) -> Sequence[Action]:
        raise RuntimeError("I will not")


def test_a_failing_runtime_policy_is_reported_and_its_iterations_are_left_out(
    home: Home, dynamic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_policy", lambda *_: Stubborn())
    found = compared(home, dynamic, "my-own")
    assert found.iterations == 1 and found.rows[0].other_s and found.rows[0].why == ()
    (why,) = found.rows[1].why
    assert why.startswith("my-own: ") and why.endswith("RuntimeError: I will not")
    assert found.rows[1].recorded_s and found.rows[1].other_s is None and found.rows[1].start == "RRRJ"
