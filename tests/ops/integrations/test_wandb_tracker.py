"""Weights & Biases: each step once and in order, wherever a process dies; nothing but the run's data leaves the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.delivery.orphaned_outbox import SLICE_SECONDS
from flows.run.home import Home
from flows.run.lease import PATIENCE_SECONDS
from flows.run.protocols import OutboxItem
from ops.integrations.trackers import trackers_of
from ops.integrations.wandb_log import BLOCK, CHUNK, FIRST, FULL, HEADER, LAST, MIDDLE, complete_records
from ops.integrations.wandb_tracker import LONGEST_DELIVERY_SECONDS, WandbTracker, tracked_name
from tests.ops.integrations.wandb_process import CREATION
from tests.ops.integrations.wandb_service import Received, ReceivedRun, wandb_service
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import keep_secret
from yatt_core.spec import RunSpec
from yatt_core.spec.availability import check_available
from yatt_core.spec.sections.tracking import TrackingSpec
from yatt_core.tracker_kinds import TRACKER_KINDS, TrackerKind

KEY = "0f" * 20
SECONDS = 60


@pytest.fixture
def service() -> Iterator[Received]:
    with wandb_service() as received:
        yield received


def environment(tmp_path: Path, service: Received) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    root = Path(__file__).parents[3]
    own = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": service.address, "HOME": str(tmp_path), "PYTHONPATH": str(root)}
    return kept | own


def start(tmp_path: Path, service: Received, mode: str, last: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.ops.integrations.wandb_process", str(tmp_path / "runs"), mode, str(last)]
    return subprocess.Popen(
        [*command, *more], env=environment(tmp_path, service), stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )


def session(tmp_path: Path, service: Received, mode: str, last: int) -> None:
    process = start(tmp_path, service, mode, last)
    said, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, said.split()) == (0, ["delivered"])


def killed_session(tmp_path: Path, service: Received, mode: str, last: int) -> None:
    process = start(tmp_path, service, mode, last, "hang")
    assert process.stdout is not None and process.stdout.readline() == "logged\n"
    process.kill()
    process.wait(SECONDS)
    process.stdout.close()


def synced(tmp_path: Path, service: Received) -> None:
    """Uploads the files of offline runs with wandb's own command."""
    folders = sorted(str(path) for path in (tmp_path / "runs" / "toy-1" / "wandb").glob("offline-run-*"))
    command = [sys.executable, "-m", "wandb", "sync", "--yes", *folders]
    subprocess.run(command, env=environment(tmp_path, service), cwd=tmp_path, check=True, timeout=SECONDS)


def only_run(service: Received) -> ReceivedRun:
    (name,) = service.runs
    assert name == tracked_name(CREATION).partition("/")[2]
    return service.runs[name]


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_points_that_a_killed_process_had_logged_arrive_once_and_in_order(
    mode: str, tmp_path: Path, service: Received
) -> None:
    killed_session(tmp_path, service, mode, 5)
    session(tmp_path, service, mode, 6)
    sent = "\n".join(service.requests)
    if mode == "offline":
        assert not sent
        synced(tmp_path, service)
    run = only_run(service)
    assert [(line["_step"], line["reward/mean"]) for line in run.history] == [(k, k / 10) for k in range(7)]
    assert [line["_timestamp"] for line in run.history] == [5 + k / 1000 for k in range(7)]
    assert (run.config, run.notes) == ({"seed": "7"}, "a note")
    assert not [part for part in (KEY, str(tmp_path), '"host":"', "/otel/") if part in sent]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_points_without_confirmation_never_arrive_once_a_session_is_cut_off(tmp_path: Path, service: Received) -> None:
    process = start(tmp_path, service, "online", 5, "cut")
    said, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, said.split()) == (0, ["refused", "refused"])
    assert [line["_step"] for line in only_run(service).history] == [0, 1, 2]


def test_an_absent_service_is_an_error_of_infrastructure_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        keep_secret(KEY)  # as whoever resolves a reference to it does
        tracker = WandbTracker(Home(tmp_path), key=KEY)
        name = tracker.deliver([CREATION])[CREATION.key]
        with pytest.raises(InfrastructureError, match="Weights & Biases") as raised:
            tracker.deliver([OutboxItem("n", "toy-1", "note", {"text": "x"}, 5_000, name)])
        tracker.close()
    assert KEY not in str(raised.value)


def test_a_driver_waits_longer_than_the_slowest_delivery_of_a_keeper() -> None:
    assert SLICE_SECONDS + LONGEST_DELIVERY_SECONDS < PATIENCE_SECONDS


def tracked(**keys: object) -> RunSpec:
    tracking = TrackingSpec.model_validate({"trackers": ["wandb"], **keys})
    return toy_spec().model_copy(update={"tracking": tracking})


def test_a_missing_package_or_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=r"tracking\.wandb_mode: .*WANDB_API_KEY"):
        trackers_of(home, tracked())
    assert list(trackers_of(home, tracked(wandb_mode="offline"))) == ["wandb"]
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert list(trackers_of(home, tracked())) == ["wandb"]
    lacking = TrackerKind("wandb", package="no-such-package")
    monkeypatch.setitem(TRACKER_KINDS, "wandb", lacking)
    for check in (lambda: check_available(tracked()), lambda: trackers_of(home, tracked())):
        with pytest.raises(ConfigurationError, match=r"tracking\.trackers: .*yatt\[wandb\]"):
            check()


@pytest.mark.parametrize("name", ["a/b", "50%", "", "x" * 129])
def test_a_name_that_is_no_project_is_refused(name: str) -> None:
    TrackingSpec.model_validate({"experiment": name})
    with pytest.raises(ValueError, match="experiment"):
        tracked(experiment=name)


def test_tracked_names_are_stable_and_differ_by_branch_and_ledger() -> None:
    def named(key: str, owner: str) -> str:
        body = {"owner": owner, "name": "toy-1", "experiment": "e"}
        return tracked_name(OutboxItem(key, "toy-1", "run", body, 5, None))

    names = [named(key, owner) for key in ("toy-1/run@wandb", "toy-1/b1/run@wandb") for owner in ("a", "b")]
    assert len(set(names)) == 4
    assert names[0] == named("toy-1/run@wandb", "a") and names[0].startswith("e/toy-1-")


def log_of(records: list[bytes]) -> bytes:
    """Returns a log with these records, split into chunks where a block ends."""
    data = bytearray(HEADER)
    for record in records:
        left = record
        first = True
        while True:
            space = BLOCK - len(data) % BLOCK
            if space < CHUNK.size:
                data += bytes(space)
                continue
            part = left[: space - CHUNK.size]
            left = left[space - CHUNK.size :]
            kind = (LAST if not left else MIDDLE) if not first else (FULL if not left else FIRST)
            data += CHUNK.pack(0, len(part), kind) + part
            first = False
            if not left:
                break
    return bytes(data)


def test_a_log_is_read_up_to_its_last_complete_record() -> None:
    records = [bytes([k % 251]) * size for k, size in enumerate([10, BLOCK - 40, 3, 5, 3 * BLOCK, 1, BLOCK // 2, 100])]
    data = log_of(records)
    assert complete_records(data, HEADER) == (records, len(data))
    for cut in range(HEADER, len(data), 997):
        found, end = complete_records(data[:cut], HEADER)
        assert found == records[: len(found)]
        start = end - end % BLOCK
        assert complete_records(data[start:], end - start)[0] == records[len(found) :]
