"""Which flow runs of windows the reaper considers dead."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Running

from db.core.holder import Holder, is_gone, this_process
from db.ledger import Ledger
from flows.prefect_io.prefect_server import worker_name
from flows.run.home import Home
from flows.schedule import reaper
from flows.schedule.flow_run_process import FLOW_RUN_VARIABLE, WORKER_LABEL
from flows.schedule.reaper import (
    SILENT_SECONDS,
    START_SECONDS,
    ProcessSigns,
    cause_of_death,
    end_of_session,
    end_of_worker,
    signs_of,
)
from tests.ops.seeding import seed_run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


SIGNS = ProcessSigns(process="window of toy-1", here=True, gone=False, replaced=False, silent_seconds=1e6)


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        (SIGNS, None),
        (replace(SIGNS, gone=True), "process .*: window of toy-1"),
        (replace(SIGNS, here=False, silent_seconds=SILENT_SECONDS - 1), None),
        (replace(SIGNS, here=False, silent_seconds=SILENT_SECONDS), ".* 1800 s: window of toy-1"),
        (replace(SIGNS, replaced=True), ".*driver.*: window of toy-1"),
        (ProcessSigns("", False, False, False, 1e4), ".* 10000 s: .*"),
        (ProcessSigns("", False, False, False, 10.0), None),
    ],
)
def test_what_counts_as_dead(signs: ProcessSigns, cause: str | None) -> None:
    found = cause_of_death(signs)
    assert found is None if cause is None else found is not None and re.search(f"{cause}$", found)


@pytest.fixture
def bystander() -> Iterator[Callable[[str], int]]:
    """Yields a function that starts a process with a flow run in its environment and returns its id."""
    processes = list[subprocess.Popen[bytes]]()

    def start(flow_run: str) -> int:
        environment = {**os.environ, FLOW_RUN_VARIABLE: flow_run}
        processes.append(subprocess.Popen(["sleep", "300"], env=environment))
        return processes[-1].pid

    yield start
    for process in processes:
        process.kill()
        process.wait()


def cause_before_the_window(home: Home, flow_run: UUID, pid: int, worker: str, silent_seconds: float) -> str | None:
    """Returns why a flow run whose window has not begun counts as dead, or None."""
    run = seed_run(home)
    since = datetime.now(UTC) - timedelta(seconds=silent_seconds)
    row = FlowRun(
        id=flow_run,
        flow_id=uuid4(),
        state=Running(timestamp=since),
        infrastructure_pid=str(pid),
        labels={WORKER_LABEL: worker},
    )
    with Ledger.open(home.ledger) as ledger:
        return cause_of_death(signs_of(ledger, run, row))


GONE = 2**22 + 1
"""Higher than any process id."""


def test_a_window_that_died_before_it_began_is_detected_by_its_process_on_this_host(home: Home) -> None:
    cause = cause_before_the_window(home, uuid4(), GONE, worker_name(), START_SECONDS + 1)
    assert cause == f"its process is gone: pid {GONE} of worker {worker_name()}"


def test_a_reused_process_id_counts_as_gone(home: Home, bystander: Callable[[str], int]) -> None:
    pid = bystander(str(uuid4()))
    cause = cause_before_the_window(home, uuid4(), pid, worker_name(), START_SECONDS + 1)
    assert cause is not None and cause.startswith(f"its process is gone: pid {pid}")


def test_a_window_whose_process_lives_is_left_alone_before_it_begins(
    home: Home, bystander: Callable[[str], int]
) -> None:
    flow_run = uuid4()
    pid = bystander(str(flow_run))
    assert cause_before_the_window(home, flow_run, pid, worker_name(), 10 * SILENT_SECONDS) is None


def test_a_process_id_just_recorded_by_prefect_may_belong_to_an_earlier_start(home: Home) -> None:
    assert cause_before_the_window(home, uuid4(), GONE, worker_name(), START_SECONDS - 10) is None


def test_a_worker_on_another_host_is_judged_by_its_silence_alone(home: Home) -> None:
    assert cause_before_the_window(home, uuid4(), GONE, "far", SILENT_SECONDS - 10) is None
    assert "no sign of life" in str(cause_before_the_window(home, uuid4(), GONE, "far", SILENT_SECONDS + 1))


# -- sessions ---------------------------------------------------------------------------------------------------------


def session_of(home: Home, process: Holder, outcome: str | None = None) -> tuple[FlowRun, FlowRun, str]:
    """Records a session that a process drives; returns its flow run, that of a block, and the run."""
    run = seed_run(home)
    key = uuid4()
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, process, 60.0)
        ledger.leases.start_session(fence, str(key), run)
        if outcome is not None:
            ledger.leases.end_session(fence, outcome)
            ledger.leases.release(fence)
    block = FlowRun(id=uuid4(), flow_id=uuid4(), parameters={"run": run, "session": str(key), "first": 1, "last": 10})
    return FlowRun(id=key, flow_id=uuid4(), parameters={"run": run}), block, run


def ends(home: Home, *flow_runs: FlowRun) -> list[tuple[str, str] | None]:
    """Returns the final state's type and message of each flow run."""
    with Ledger.open(home.ledger) as ledger:
        found = [end_of_session(ledger, flow_run) for flow_run in flow_runs]
    return [None if end is None else (end.type.value, end.message or "") for end in found]


def test_the_flow_runs_of_a_driver_that_lives_are_left_alone(home: Home) -> None:
    session, block, _ = session_of(home, this_process())
    assert ends(home, session, block) == [None, None]
    foreign = FlowRun(id=uuid4(), flow_id=uuid4(), parameters={"run": "unknown-7"})
    unrecorded = FlowRun(id=uuid4(), flow_id=uuid4(), parameters=dict(session.parameters))
    assert ends(home, foreign, unrecorded) == [None, None], "they may belong to another ledger"


def test_a_killed_driver_leaves_flow_runs_that_are_closed_with_its_block(home: Home) -> None:
    session, block, _ = session_of(home, replace(this_process("driver"), pid=GONE))
    found = ends(home, session, block)
    assert [end and end[0] for end in found] == ["CRASHED", "CRASHED"]
    assert all(end and "driver" in end[1] for end in found)


def test_the_flow_runs_of_a_driver_that_was_replaced_are_closed(home: Home) -> None:
    session, block, run = session_of(home, replace(this_process(), pid=GONE))
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process(), 60.0, is_gone)
    assert [end and end[0] for end in ends(home, session, block)] == ["CRASHED", "CRASHED"]


@pytest.mark.parametrize(("outcome", "state"), [("ended", "COMPLETED"), ("failed", "CRASHED")])
def test_an_end_that_prefect_did_not_hear_of_is_reported_later(
    home: Home, monkeypatch: pytest.MonkeyPatch, outcome: str, state: str
) -> None:
    session, block, run = session_of(home, this_process(), outcome)
    assert ends(home, session, block) == [None, None], "the driver may be about to report it"
    monkeypatch.setattr(reaper, "START_SECONDS", 0.0)
    assert [end and end[0] for end in ends(home, session, block)] == [state, state]
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process("the next driver"), 60.0)
    assert [end and end[0] for end in ends(home, session, block)] == [state, state], "a later driver changes nothing"


def test_the_flow_runs_of_other_ledgers_on_the_server_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [FlowRun(id=uuid4(), flow_id=uuid4()) for _ in range(7)]
    asked = list[tuple[int, int]]()

    def read_flow_runs(*, limit: int, offset: int, sort: FlowRunSort, **_: object) -> list[FlowRun]:
        asked.append((offset, limit))
        return sorted(rows, key=lambda row: row.id)[offset : offset + limit]

    monkeypatch.setattr(reaper, "PAGE", 3)
    client: Any = SimpleNamespace(read_flow_runs=read_flow_runs)
    assert {row.id for row in reaper._taken_for_alive(client, "train")} == {row.id for row in rows}
    assert asked == [(0, 3), (3, 3), (6, 3)]


def check_of(pid: int, seconds: float, flow_run: UUID, worker: str) -> FlowRun:
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    return FlowRun(
        id=flow_run,
        flow_id=uuid4(),
        state=Running(timestamp=since),
        infrastructure_pid=str(pid),
        labels={WORKER_LABEL: worker},
        parameters={"pipeline": "line"},
    )


def test_a_check_of_a_pipeline_is_closed_once_its_process_is_gone(bystander: Callable[[str], int]) -> None:
    flow_run = uuid4()
    pid = bystander(str(flow_run))
    late = 2 * SILENT_SECONDS
    assert end_of_worker(check_of(pid, late, flow_run, worker_name())) is None, "it may drive for days"
    assert end_of_worker(check_of(pid, late, uuid4(), "yatt-elsewhere")) is None
    assert end_of_worker(check_of(pid, START_SECONDS / 2, uuid4(), worker_name())) is None
    end = end_of_worker(check_of(pid, late, uuid4(), worker_name()))
    assert end is not None and end.message is not None and f"its process is gone: pid {pid}" in end.message


def test_maintenance_of_this_home_is_closed_once_its_worker_is_dead(
    home: Home, monkeypatch: pytest.MonkeyPatch, bystander: Callable[[str], int]
) -> None:
    living = uuid4()
    late = datetime.now(UTC) - timedelta(seconds=2 * START_SECONDS)
    state: State[None] = Running(timestamp=late)
    common = {"flow_id": uuid4(), "state": state, "state_type": state.type, "labels": {WORKER_LABEL: worker_name()}}
    own, *others = (
        FlowRun(id=key, parameters={"home": folder}, infrastructure_pid=str(pid), **common)
        for key, folder, pid in [
            (uuid4(), str(home.folder), GONE),
            (uuid4(), "/elsewhere", GONE),
            (living, str(home.folder), bystander(str(living))),
        ]
    )
    rows = {row.id: row for row in (own, *others)}
    ends = list[tuple[UUID, str]]()

    def read_flow_runs(*, flow_filter: FlowFilter, **_: object) -> list[FlowRun]:
        names = flow_filter.name and flow_filter.name.any_
        return list(rows.values()) if names and "yatt-maintenance" in names else []

    client: Any = SimpleNamespace(
        read_flow_runs=read_flow_runs,
        read_flow_run=rows.__getitem__,
        set_flow_run_state=lambda key, end, force: ends.append((key, end.name)),
    )
    monkeypatch.setattr(reaper, "get_client", lambda sync_client: nullcontext(client))
    home.folder.mkdir()
    with Ledger.open(home.ledger) as ledger:
        (closed,) = reaper.reap(ledger, home)
    assert (closed.flow_run, closed.run) == (str(own.id), "yatt-maintenance")
    assert ends == [(own.id, "Crashed")]
