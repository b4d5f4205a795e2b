"""The reports of a session's end: where the time went, and a table of samples without any text in the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.records import DecisionRow
from flows.driver.context import RunContext
from flows.reports import session_report
from flows.reports.session_report import publish_reports, sample_table
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.ops.judged_run import CUT, FAILED, UNREADABLE, seed_judged_run
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.tracking import TrackingSpec


def published(home: Home, spec: RunSpec) -> dict[str, dict[str, object]]:
    """Publishes the reports of a seeded run; returns the bodies of the outbox rows by name."""
    run = seed_run(home, spec=spec)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        publish_reports(RunContext.of(home, spec, ledger, fence, SilentObserver()))
        rows = ledger.outbox.claim(fence, 100)
        return {str(row.payload["name"]): dict(row.payload) for row in rows if row.kind == "file"}


def test_a_session_leaves_a_picture_a_report_and_samples(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    bodies = published(home, toy_spec())
    assert sorted(bodies) == ["learning.png", "reports/samples.json", "reports/time.md"]
    folder = home.run_folder("toy-1")
    assert all((folder / str(body["path"])).is_file() for body in bodies.values())
    table = json.loads((folder / "reports" / "samples.json").read_text())
    assert {row[-1] for row in table["data"]} == {2} and len(table["data"]) == 8
    ledger = b"".join(path.read_bytes() for path in home.folder.glob("ledger.db*"))
    texts = {str(row[table["columns"].index("response")]) for row in table["data"]}
    assert texts and not [text for text in texts if len(text) >= 12 and text.encode() in ledger]
    assert "| productive |" in (folder / "reports" / "time.md").read_text()


def test_placement_decisions_reach_the_trackers_with_prediction_outcome_and_reason(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_run(home, spec=toy_spec())
    roles = {"collect": [["rollout-0", "judge-2"], ["rollout-1"]], "learn": []}
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        decision = {"mode": "dynamic", "start": "rrj", "roles": roles}
        ledger.records.decision(fence, DecisionRow(0, 2, 0, {}, decision, {"collect": 4.0}, "judging is slower"))
        ledger.records.decision_outcome(fence, 0, 2, 0, {"collect_s": 5.0})
        publish_reports(RunContext.of(home, toy_spec(), ledger, fence, SilentObserver()))
        (body,) = [
            row.payload for row in ledger.outbox.claim(fence, 100) if "placement" in str(row.payload.get("name"))
        ]
    assert body["table"]
    table = json.loads((home.run_folder(run) / str(body["path"])).read_text())
    (row,) = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert (row["iteration"], row["predicted_collect_s"], row["collect_s"]) == (2, 4.0, 5.0)
    assert (row["devices"], row["reason"]) == ("rollout-0, judge-2; rollout-1", "judging is slower")


@pytest.mark.parametrize(
    ("tracking", "names"),
    [
        (TrackingSpec(samples=0), ["learning.png", "reports/time.md"]),
        (TrackingSpec(reports=False), []),
        (TrackingSpec(enabled=False), []),
    ],
    ids=["no samples", "no reports", "not tracked"],
)
def test_the_spec_says_what_leaves_the_folder(tmp_path: Path, tracking: TrackingSpec, names: list[str]) -> None:
    spec = toy_spec().model_copy(update={"tracking": tracking})
    assert sorted(published(Home(tmp_path / "runs"), spec)) == names


@pytest.mark.parametrize(
    ("broken", "others"),
    [
        ("write_learning_plot", ["reports/samples.json", "reports/time.md"]),
        ("accounts_of", ["learning.png", "reports/samples.json"]),
        ("make_folder", []),
    ],
)
def test_a_file_that_cannot_be_made_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, others: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise ImportError("a library is damaged")

    monkeypatch.setattr(session_report, broken, fail)
    assert sorted(published(Home(tmp_path / "runs"), toy_spec())) == others


def test_a_sample_without_a_score_has_no_reward_in_the_table(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_judged_run(home)
    with Ledger.open(home.ledger) as ledger:
        table = sample_table(ledger, run, home.folder, 8)
    assert table is not None
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    found = {(row["prompt_ordinal"], row["sample"]): (row["reward"], row["correct"]) for row in rows}
    assert {place for place, scores in found.items() if scores == (None, None)} == {CUT, FAILED, UNREADABLE}
    assert len(found) == 8 and all(None not in scores for scores in found.values() if scores != (None, None))


def test_a_damaged_file_leaves_out_the_table(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        few = sample_table(ledger, run, home.folder, 3)
        assert few is not None and len(few["data"]) == 3
        for shard in ledger.records.shards(run, 0, 2):
            (home.run_folder(run) / shard.folder / session_report.SAMPLES_FILE).write_bytes(b"damaged")
        assert sample_table(ledger, run, home.folder, 3) is None
