"""The checks, decisions and messages of `yatt up` without starting a server: `make verify` tests the real group."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from flows.prefect_io.prefect_server import DATABASE_VARIABLE, PASSWORD_VARIABLE, RETENTION, SERVER_PASSWORD_VARIABLE
from flows.run.home import Home, with_driver
from flows.run.protocols import OutboxItem
from ops.group.control import changes, start
from ops.group.keeper import Keeper
from ops.group.keeper_state import UndeliveredRows, read_undelivered
from ops.group.members import (
    CLUSTERS,
    KEEPER,
    MLFLOW,
    ORDER,
    PREFECT,
    WARM_HEADS_VARIABLE,
    WORKER,
    Ports,
    databases,
    members,
    secrets,
    warm_heads,
)
from ops.group.password import password_file, settle_password
from ops.group.ports import settled
from ops.group.preflight import check_ports, check_surroundings, listener
from ops.group.record import GroupRecord, read_record, write_record
from ops.group.status import (
    DEGRADED,
    DOWN,
    LOST,
    SILENT,
    STARTING,
    UP,
    GroupStatus,
    MemberStatus,
    group_status,
    overall,
)
from tests.ops.conftest import Yatt
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.supervisor.process import ProcessIdentity
from yatt_core.supervisor.runner import free_port
from yatt_core.supervisor.services import ServiceState, ending_order
from yatt_core.supervisor.state import ServiceReport, SupervisorFiles, SupervisorState, write_state

PORTS = Ports(4200, 5000, 8686, 4201)
ANY = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")
PASSWORD = "hunter2-hunter2"


def report(name: str, state: ServiceState, restarts: int = 0, reason: str = "") -> ServiceReport:
    return ServiceReport(name, state, None, "", {}, restarts, 0.0, reason, "a.log")


# -- members ----------------------------------------------------------------------------------------------------------


def test_the_group_has_all_members(home: Home) -> None:
    assert tuple(service.name for service in members(home, PORTS, {})) == ORDER


def test_every_member_listens_on_loopback_only_and_sends_no_telemetry(home: Home) -> None:
    for service in members(home, PORTS, {}):
        told = " ".join((*service.argv, *service.environment.values()))
        assert "0.0.0.0" not in told
        assert service.environment["DO_NOT_TRACK"] == "true"
        if service.ready.startswith("http://"):
            assert service.ready.startswith("http://127.0.0.1:")
    by_name = {service.name: service for service in members(home, PORTS, {})}
    assert by_name[PREFECT].environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert by_name[MLFLOW].environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert by_name[MLFLOW].environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert by_name[WORKER].environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert by_name[WORKER].environment["VLLM_NO_USAGE_STATS"] == "1"
    assert by_name[WORKER].environment["PREFECT_WORKER_WEBSERVER_HOST"] == "127.0.0.1"


def test_the_worker_ends_before_prefect_and_the_keeper_before_mlflow(home: Home) -> None:
    order = ending_order(members(home, PORTS, {}))
    place = {name: step for step, names in enumerate(order) for name in names}
    assert place[WORKER] < place[PREFECT]
    assert place[KEEPER] < place[MLFLOW]


def test_warm_heads_are_as_many_as_the_environment_says(home: Home) -> None:
    assert warm_heads({}) == 1
    assert warm_heads({WARM_HEADS_VARIABLE: "3"}) == 3
    for none in ({WARM_HEADS_VARIABLE: "0"}, {"YATT_RAY_ADDRESS": "10.0.0.1:6379"}):
        assert CLUSTERS not in [service.name for service in members(home, PORTS, none)]
    for wrong in ("-1", "two", "65", "1.5", ""):
        with pytest.raises(ConfigurationError, match=f"{WARM_HEADS_VARIABLE} is '{wrong}'.*0 to 64"):
            members(home, PORTS, {WARM_HEADS_VARIABLE: wrong})


def test_the_vacuum_removes_events_and_flow_runs_after_a_configurable_time(home: Home) -> None:
    prefect = members(home, PORTS, {})[0].environment
    assert prefect["PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"] == "events,flow_runs"
    assert {name: prefect[name] for name in RETENTION} == dict(RETENTION)
    period = "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD"
    assert members(home, PORTS, {period: "7200"})[0].environment[period] == "7200"


@pytest.mark.verify
def test_prefect_understands_its_settings(home: Home) -> None:
    printed = (
        "from datetime import timedelta; from prefect.settings import get_current_settings as get; s = get().server; "
        "v = s.services.db_vacuum; print(sorted(v.enabled_vacuum_types), v.retention_period, s.events.retention_period, "
        "s.api.csrf_protection_enabled, s.api.cors_allowed_origins, s.ui.api_url, s.analytics_enabled)"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    prefect = members(home, PORTS, {})[0]
    output = subprocess.run(
        [sys.executable, "-c", printed],
        env=kept | dict(prefect.environment),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert output.split(maxsplit=2)[:2] == ["['events',", "'flow_runs']"]
    assert "30 days, 0:00:00 7 days, 0:00:00 True http://127.0.0.1:4200,http://localhost:4200" in output
    assert output.split()[-2:] == ["http://127.0.0.1:4200/api", "False"]


def test_addresses_with_passwords_are_in_no_service_spec(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = f"postgresql://yatt:{PASSWORD}@127.0.0.1:5432/db"
    for variable in ("YATT_LEDGER", DATABASE_VARIABLE, "MLFLOW_BACKEND_STORE_URI"):
        monkeypatch.setenv(variable, dsn)
    assert databases(home) == {
        "YATT_LEDGER": dsn,
        DATABASE_VARIABLE: dsn.replace("postgresql", "postgresql+asyncpg"),
        "MLFLOW_BACKEND_STORE_URI": dsn.replace("postgresql", "postgresql+psycopg"),
    }
    for service in members(home, PORTS, os.environ):
        assert PASSWORD not in repr(service)


def test_databases_are_files_in_the_home_by_default(home: Home) -> None:
    assert databases(home) == {
        "YATT_LEDGER": f"sqlite:///{home.folder}/ledger.db",
        DATABASE_VARIABLE: f"sqlite+aiosqlite:///{home.folder}/group/prefect/prefect.db",
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home.folder}/mlflow.db",
    }


def test_prefect_always_has_a_password_that_only_its_owner_can_read(home: Home) -> None:
    settle_password(home)
    made = secrets(home)
    file = password_file(home)
    assert made[SERVER_PASSWORD_VARIABLE] == made[PASSWORD_VARIABLE] == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(made[SERVER_PASSWORD_VARIABLE]) > 64
    settle_password(home)
    assert secrets(home) == made, "the same for every start"
    assert made[SERVER_PASSWORD_VARIABLE] not in repr(members(home, PORTS, os.environ))
    assert [path.name for path in home.group.iterdir()] == [file.name]


def test_a_custom_password_replaces_the_generated_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_password(home)
    monkeypatch.setenv(SERVER_PASSWORD_VARIABLE, f"yatt:{PASSWORD}")
    settle_password(home)
    assert secrets(home)[SERVER_PASSWORD_VARIABLE] == secrets(home)[PASSWORD_VARIABLE] == f"yatt:{PASSWORD}"
    assert PASSWORD not in repr(members(home, PORTS, os.environ)) and not password_file(home).exists()
    monkeypatch.delenv(SERVER_PASSWORD_VARIABLE)
    assert not secrets(home)[PASSWORD_VARIABLE] and not password_file(home).exists(), "reading it creates no password"


def test_the_settings_for_prefects_commands_do_not_show_the_password(home: Home) -> None:
    prefect = MemberStatus(PREFECT, "ready", PORTS.address(PREFECT), 1, 1.0, 0, "", "", "")
    found = GroupStatus(str(home.folder), "up", 1, "detached", (prefect,), (), "/my home/group/prefect-password")
    address = f"export PREFECT_API_URL={PORTS.address(PREFECT)}/api"
    assert found.prefect_client == f"{address} PREFECT_API_AUTH_STRING=\"$(cat '/my home/group/prefect-password')\""
    assert replace(found, password_file="").prefect_client == address


def test_postgresql_is_reached_by_the_installed_driver() -> None:
    for given in ("postgres://a@b/c", "postgresql://a@b/c", "postgresql+psycopg2://a@b/c"):
        assert with_driver(given, "asyncpg") == "postgresql+asyncpg://a@b/c"
    assert with_driver("sqlite:///x.db", "asyncpg") == "sqlite:///x.db"


# -- ports ------------------------------------------------------------------------------------------------------------


def test_ports_are_the_requested_the_previous_or_free_ones() -> None:
    old = [free_port()]
    old.append(free_port(old))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        last = Ports(old[0], taken.getsockname()[1], 1, old[1])
        found = settled(Ports(0, 0, 8686, 0), last)
    assert (found.prefect, found.dashboard, found.worker) == (old[0], 8686, old[1])
    assert found.mlflow not in (0, last.mlflow)
    fresh = settled(Ports(0, 0, 0, 0), None)
    assert len({fresh.prefect, fresh.mlflow, fresh.dashboard, fresh.worker}) == 4


def test_a_taken_port_is_refused_and_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"pid {os.getpid()}" in listener(port)
        with pytest.raises(ConfigurationError, match=rf"--mlflow-port {port}: .*pid {os.getpid()}\b"):
            check_ports(replace(PORTS, prefect=free_port(), mlflow=port))
    with pytest.raises(ConfigurationError, match=f"--dashboard-port and --prefect-port are both {port}"):
        check_ports(Ports(port, free_port(), port, 0))


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_before_anything_starts(home: Home, yatt: Yatt, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = yatt("up", "--prefect-port", port)
        assert (answer.code, answer.out) == (2, "")
        assert f"--prefect-port {port}: " in answer.err and f"pid {os.getpid()} " in answer.err
    for variable in ("YATT_LEDGER", DATABASE_VARIABLE, "MLFLOW_BACKEND_STORE_URI"):
        for dsn, said, code in (
            (f"postgresql://yatt:{PASSWORD}@127.0.0.1:{free_port()}/db", "onnection", 1),
            (f"mysql://yatt:{PASSWORD}@127.0.0.1/db", "not mysql", 2),
            (f"postgresql://yatt:{PASSWORD}@127.0.0.1:first/db", "expected postgresql://", 2),
            ("sqlite:///beside/me.db", "expected postgresql://", 2),
            ("me.db", "expected postgresql://", 2),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(variable, dsn)
                answer = yatt("up", *ANY)
            assert answer.code == code, answer.err
            assert variable in answer.err
            assert said in answer.err
            assert PASSWORD not in answer.err
    for variable in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "http://elsewhere:80")
            answer = yatt("up", *ANY)
        assert answer.code == 2
        assert f"unset {variable}" in answer.err
    assert not (home.group / "supervisor" / "state.json").exists()
    assert group_status(home).state == DOWN


def test_an_impossible_home_is_refused(tmp_path: Path, yatt: Yatt) -> None:
    (tmp_path / "file").touch()
    answer = yatt("up", "--home", str(tmp_path / "file" / "runs"), *ANY)
    assert answer.code == 2
    assert f"{tmp_path / 'file'} " in answer.err


def test_the_groups_own_addresses_are_accepted_in_the_environment() -> None:
    check_surroundings(
        PORTS, {"MLFLOW_TRACKING_URI": "http://localhost:5000/", "PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    )


def test_two_starts_exclude_each_other(home: Home) -> None:
    home.group.mkdir(parents=True)
    with (home.group / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=f"{home.folder}: .*`yatt up`"):
            start(home, PORTS, True, {})


def test_without_a_group_down_and_status_say_so(home: Home, yatt: Yatt) -> None:
    down = yatt("down")
    assert (down.code, down.out) == (0, f"{home.folder}: no group was up\n")
    assert yatt("down", "-o", "json").document == {"home": str(home.folder), "ended": False}
    status = yatt("status", "-o", "json")
    assert (status.code, status.document["state"], status.document["members"]) == (1, DOWN, [])
    assert "`yatt up`" in yatt("status").out
    assert not home.folder.exists()


# -- status -----------------------------------------------------------------------------------------------------------


def test_the_overall_state() -> None:
    ready = ServiceState.READY
    starting = ServiceState.STARTING
    failed = ServiceState.FAILED
    assert overall([ready, ready]) == UP
    assert overall([ready, starting]) == overall([ServiceState.WAITING, ready]) == STARTING
    assert overall([ready, failed, starting]) == overall([ready, SILENT]) == DEGRADED


def test_a_hanging_member_and_a_killed_supervisor_are_detected(home: Home) -> None:
    me = ProcessIdentity.current()
    files = SupervisorFiles.of(home.group)
    files.root.mkdir(parents=True)
    write_record(home.group, GroupRecord(None, replace(PORTS, mlflow=free_port()), 1.0))
    services = {name: report(name, ServiceState.READY) for name in (MLFLOW, KEEPER)}
    write_state(files, SupervisorState(me, "digest", services))
    found = group_status(home)
    assert (found.state, found.supervisor, found.held_by) == (DEGRADED, me.pid, "detached")
    assert [(member.name, member.state) for member in found.members] == [(MLFLOW, SILENT), (KEEPER, "ready")]
    write_state(files, SupervisorState(replace(me, start_time=1.0), "digest", services))
    assert group_status(home).state == LOST
    write_state(files, SupervisorState(replace(me, start_time=1.0), "digest", services, ended="told to stop"))
    assert group_status(home).state == DOWN


def test_a_record_is_read_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    record = GroupRecord(ProcessIdentity.current(), PORTS, 12.5)
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert not record.is_abandoned
    assert GroupRecord(replace(ProcessIdentity.current(), start_time=1.0), PORTS, 12.5).is_abandoned
    (tmp_path / "group.json").write_text('{"ports": {}}')
    with pytest.raises(InfrastructureError, match=r"group\.json: "):
        read_record(tmp_path)


def test_changes_are_reported_with_their_reason() -> None:
    waiting = report("mlflow", ServiceState.WAITING, 1, "exited with code 1")
    assert list(changes({}, {"mlflow": report("mlflow", ServiceState.WAITING)})) == []
    (line,) = changes({}, {"mlflow": waiting})
    assert line.startswith("mlflow: exited with code 1;") and line.endswith("(2 of 5)")
    assert list(changes({"mlflow": waiting}, {"mlflow": waiting})) == []
    ready = report("mlflow", ServiceState.READY, 1)
    assert list(changes({"mlflow": waiting}, {"mlflow": ready})) == ["mlflow: ready"]
    once = report("mlflow", ServiceState.READY, 0)
    seen_late = replace(ready, last_death="exited with code 1")
    line, last = changes({"mlflow": once}, {"mlflow": seen_late})
    assert line.startswith("mlflow: exited with code 1;") and line.endswith("(1 of 5)") and last == "mlflow: ready"
    failed = report("mlflow", ServiceState.FAILED, 5, "gave up")
    (line,) = changes({"mlflow": ready}, {"mlflow": failed})
    assert line.startswith("mlflow: failed: gave up;") and line.endswith(" a.log")


# -- keeper -----------------------------------------------------------------------------------------------------------


class Recorder:
    """A tracker that records the rows it receives."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.away = True

    def check_reachable(self) -> None:
        if self.away:
            raise InfrastructureError("MLflow is away, see http://me:secret-word@mlflow")

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        self.arrived += [item.key for item in items]
        return {item.key: "tracked" for item in items if item.kind == "run"}


def with_rows(ledger: Ledger) -> Fence:
    """Creates a driven run with two rows to deliver."""
    run = ledger.runs.create("toy", {}, "digest", 1).id
    fence = ledger.leases.acquire(run, this_process(), 60)
    ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/run", "run", {}, 1), OutboxEntry(f"{run}/tags", "tags", {}, 2)])
    return fence


def test_the_keeper_delivers_rows_of_dead_runs_and_reports_failures(home: Home) -> None:
    home.group.mkdir(parents=True)
    tracker = Recorder()
    with Ledger.open(home.ledger) as ledger:
        driven = with_rows(ledger)
        dead = with_rows(ledger)
        ledger.leases.release(dead)
        links = len(ledger.events.links(dead.run))
        keeper = Keeper(home, tracker, tracker.check_reachable, threading.Event())
        keeper.round(ledger)
        away = UndeliveredRows(dead.run, 2, 1, "MLflow is away, see http://me:***@mlflow")
        assert read_undelivered(home.group) == (away,)
        assert len(ledger.events.links(dead.run)) == links, "no lease is taken without need"
        tracker.away = False
        keeper.round(ledger)
        assert tracker.arrived == [], "its next try is not due"
        keeper = Keeper(home, tracker, tracker.check_reachable, threading.Event())
        keeper.round(ledger)
        keeper.round(ledger)
        assert tracker.arrived == [f"{dead.run}/run", f"{dead.run}/tags"]
        assert read_undelivered(home.group) == ()
        assert ledger.outbox.counts(driven.run) == (2, 0), "its driver delivers"


def test_an_ended_keeper_does_not_begin_another_run(home: Home) -> None:
    home.group.mkdir(parents=True)
    tracker = Recorder()
    ended = threading.Event()
    tracker.away = False
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.release(with_rows(ledger))
        ended.set()
        Keeper(home, tracker, tracker.check_reachable, ended).round(ledger)
        assert tracker.arrived == []
        assert [left.rows for left in read_undelivered(home.group)] == [2]
