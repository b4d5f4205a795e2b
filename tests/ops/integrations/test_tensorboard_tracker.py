"""TensorBoard's event files: each point once, wherever a process dies, and a folder of their own for branches."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import MLFLOW, OutboxEntry, lane_id
from flows.delivery.outbox import creation_id, deliver_pending, row_id, tracking_run
from flows.run.home import Home
from flows.run.protocols import OutboxItem
from ops.integrations import tensorboard_tracker
from ops.integrations.tensorboard_tracker import TensorboardTracker
from ops.integrations.trackers import trackers_of
from tests.db.tools import commit_of
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec.availability import check_available
from yatt_core.spec.sections.tracking import TrackingSpec
from yatt_core.tracker_kinds import TRACKER_KINDS, TrackerKind

LANE = "tensorboard"


def item(kind: str, body: dict[str, Any], file: str | None, key: str = "") -> OutboxItem:
    return OutboxItem(key or f"toy-1/{kind}@{LANE}", "toy-1", kind, body, 5_000, file)


def point(iteration: int, file: str) -> OutboxItem:
    body = {"branch": 0, "iteration": iteration, "metrics": {"reward/mean": iteration / 10, "entropy": 2.0}}
    return item("metrics", body, file, f"m{iteration}")


def events(path: Path) -> list[Event]:
    """Returns the events of a file, whose checksums are verified by the tracker's own reader elsewhere."""
    data = path.read_bytes()
    found = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    assert at == len(data)
    return found


def series(path: Path, tag: str) -> list[tuple[int, float]]:
    values = ((event.step, value) for event in events(path) for value in event.summary.value)
    return [(step, round(value.simple_value, 3)) for step, value in values if value.tag == tag]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


def test_rows_sent_again_by_other_processes_add_nothing(home: Home) -> None:
    created = item("run", {"experiment": "e", "name": "toy-1"}, None, "toy-1/run@tensorboard")
    rows = [item("params", {"seed": "0"}, "", "p"), item("status", {"status": "RUNNING"}, "", "s")]
    for last in (1, 1, 3):
        tracker = TensorboardTracker(home)
        file = tracker.deliver([created])[created.key]
        sent = [OutboxItem(row.key, row.run, row.kind, row.body, row.at_ms, file) for row in rows]
        tracker.deliver([*sent, *(point(k, file) for k in range(last + 1))])
    path = home.run_folder("toy-1") / "tensorboard" / file
    assert series(path, "reward/mean") == [(k, k / 10) for k in range(4)]
    assert [event.file_version for event in events(path)].count("brain.Event:2") == 1
    assert [value.tag for event in events(path) for value in event.summary.value].count("spec/text_summary") == 1


def test_only_a_file_that_another_process_wrote_is_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    scan = tensorboard_tracker._written

    def counted(stream: Any, path: Path) -> Any:
        read.append(path)
        return scan(stream, path)

    monkeypatch.setattr(tensorboard_tracker, "_written", counted)
    tracker = TensorboardTracker(home)
    file = tracker.deliver([item("run", {}, None)])["toy-1/run@tensorboard"]
    for k in range(4):
        tracker.deliver([point(k, file)])
    assert len(read) == 1
    TensorboardTracker(home).deliver([point(4, file)])
    tracker.deliver([point(4, file), point(5, file)])
    assert len(read) == 3
    path = home.run_folder("toy-1") / "tensorboard" / file
    assert [step for step, _ in series(path, "reward/mean")] == list(range(6))


def test_each_note_is_written_once_at_the_next_step(home: Home) -> None:
    tracker = TensorboardTracker(home)
    file = tracker.deliver([item("run", {}, None)])["toy-1/run@tensorboard"]
    first, second = (replace(item("note", {"text": text}, file, text), at_ms=at) for text, at in (("a", 1), ("b", 2)))
    for _ in range(2):
        tracker.deliver([first, point(0, file), point(1, file), second])
        tracker = TensorboardTracker(home)
    path = home.run_folder("toy-1") / "tensorboard" / file
    notes = [
        (event.step, value.tensor.string_val[0])
        for event in events(path)
        for value in event.summary.value
        if value.tag == "note/text_summary"
    ]
    assert notes == [(0, b"a"), (2, b"b")]


@pytest.mark.parametrize("lost", range(1, 40, 3))
def test_an_unfinished_record_is_written_again(home: Home, lost: int) -> None:
    tracker = TensorboardTracker(home)
    file = tracker.deliver([item("run", {}, None)])["toy-1/run@tensorboard"]
    path = home.run_folder("toy-1") / "tensorboard" / file
    tracker.deliver([point(0, file), point(1, file)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    TensorboardTracker(home).deliver([point(0, file), point(1, file), point(2, file)])
    assert path.read_bytes()[: len(whole)] == whole
    assert series(path, "reward/mean") == [(0, 0.0), (1, 0.1), (2, 0.2)]


def test_a_branch_has_a_folder_of_its_own_in_the_folder_that_the_spec_names(home: Home, tmp_path: Path) -> None:
    tracker = TensorboardTracker(home, str(tmp_path / "events"))
    files = [
        tracker.deliver([item("run", {}, None, lane_id(creation_id("toy-1", branch), LANE))]).popitem()[1]
        for branch in (0, 1)
    ]
    assert [Path(file).parent.name for file in files] == ["toy-1", "toy-1-branch-1"]
    tracker.deliver([point(5, files[0])])
    tracker.deliver([point(3, files[1])])
    assert series(tmp_path / "events" / files[1], "reward/mean") == [(3, 0.3)]
    assert not home.run_folder("toy-1").exists()


def test_what_is_no_event_file_is_refused(home: Home) -> None:
    tracker = TensorboardTracker(home)
    with pytest.raises(InfrastructureError, match="does not exist yet"):
        tracker.deliver([item("note", {"text": "x"}, None)])
    (home.folder / "toy-1").mkdir(parents=True)
    (home.folder / "toy-1" / "tensorboard").write_text("in the way")
    with pytest.raises(InfrastructureError, match="tensorboard"):
        tracker.deliver([item("run", {}, None)])


class Away:
    """A tracker that does not answer."""

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        raise InfrastructureError("away")


def test_a_dead_tracker_does_not_hold_up_another(home: Home, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "digest", 3).id
        fence = ledger.leases.acquire(run, this_process("driver"), 60)
        rows = [OutboxEntry(creation_id(run, 0), "run", {}, 5), OutboxEntry(row_id(run, 1, "run"), "run", {}, 6)]
        ledger.outbox.enqueue(fence, [row.to(lane) for row in rows for lane in (MLFLOW, LANE)])
        commit = commit_of(0)
        ledger.commits.commit(fence, type(commit)(**{**_fields(commit), "trackers": (MLFLOW, LANE)}))
        with pytest.raises(InfrastructureError):
            deliver_pending(ledger, fence, Away())
        while deliver_pending(ledger, fence, TensorboardTracker(home), lane=LANE):
            pass
        assert (ledger.outbox.counts(run, MLFLOW), ledger.outbox.counts(run, LANE)) == ((3, 0), (0, 3))
        assert ledger.outbox.lanes(run) == (MLFLOW,)
        file = tracking_run(ledger, run, 0, LANE)
        assert file is not None and tracking_run(ledger, run, 1, LANE) != file
        assert ledger.runs.find(run).mlflow_run_id is None
    assert series(home.run_folder(run) / "tensorboard" / file, "reward") == [(0, 0.0)]


def _fields(commit: Any) -> dict[str, Any]:
    return {name: getattr(commit, name) for name in commit.__slots__}


def test_a_missing_package_is_named_with_its_extra(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = toy_spec().model_copy(update={"tracking": TrackingSpec(trackers=("mlflow", "tensorboard"))})
    assert sorted(trackers_of(home, spec)) == ["mlflow", "tensorboard"]
    check_available(spec)
    lacking = TrackerKind("tensorboard", package="no-such-package")
    monkeypatch.setitem(TRACKER_KINDS, "tensorboard", lacking)
    for check in (lambda: check_available(spec), lambda: trackers_of(home, spec)):
        with pytest.raises(ConfigurationError, match=r"tracking\.trackers: .*yatt\[tensorboard\]"):
            check()


@pytest.mark.parametrize("trackers", [(), ("mlflow", "mlflow"), ("comet",)])
def test_trackers_are_known_and_listed_once(trackers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="trackers"):
        TrackingSpec.model_validate({"trackers": trackers})
