"""Clusters that runs share: taken by one command at a time, kept by its drivers, and cleared once nobody holds them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.run.home import Home
from flows.run.shared_cluster import (
    CLUSTER_VARIABLE,
    end_services,
    given_cluster,
    services_folder,
    taken_cluster,
    use_folder,
)
from ops.driver_process import open_log, start_driver_process
from tests.supervisor.support import script_service, supervised
from yatt_core.supervisor.client import current_state, ensure_supervisor, stop_supervisor

TERM = 3


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "runs")
    run = made.run_folder("quick-1")
    run.mkdir(parents=True)
    yield made
    for folder in (run, *made.clusters.glob("*")):
        stop_supervisor(folder)


def serve(folder: Path) -> None:
    """Starts a supervisor with a service."""
    ensure_supervisor(folder, [script_service(folder, "")], grace=60.0)
    assert current_state(folder) is not None


def test_a_cluster_has_one_command_at_a_time_and_is_deleted_afterwards(home: Home) -> None:
    with taken_cluster(home) as first, taken_cluster(home) as second:
        assert first.folder != second.folder
        serve(first.folder)
    assert not first.folder.exists() and not second.folder.exists() and not supervised(first.folder)
    with taken_cluster(home) as third:
        assert third.folder == first.folder


def test_what_a_killed_command_has_left_is_ended_by_the_next_one(home: Home) -> None:
    with taken_cluster(home) as cluster:
        folder = cluster.folder
    serve(folder)
    (folder / "remains").touch()
    with taken_cluster(home) as cluster:
        assert cluster.folder == folder and not supervised(folder) and not (folder / "remains").exists()


def test_a_driver_that_outlives_the_command_keeps_the_cluster(home: Home) -> None:
    with taken_cluster(home) as cluster:
        folder = cluster.folder
        serve(folder)
        driver = subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(cluster.lock.fileno(),)
        )
    try:
        assert current_state(folder) is not None
        with taken_cluster(home) as another:
            assert another.folder != folder
    finally:
        driver.communicate()
    with taken_cluster(home) as again:
        assert again.folder == folder and not supervised(folder)


def test_a_run_is_served_where_its_newest_driver_was(home: Home) -> None:
    run = home.run_folder("quick-1")
    serve(run)
    use_folder(run, None, TERM)
    assert services_folder(run) == run and current_state(run) is not None
    with taken_cluster(home) as cluster:
        use_folder(run, cluster.folder, TERM)
        assert services_folder(run) == cluster.folder and current_state(run) is None
        serve(cluster.folder)
        use_folder(run, None, TERM)
        assert services_folder(run) == run
        assert current_state(cluster.folder) is not None, "another driver may be using it"


def test_an_abandoned_cluster_ends_with_what_a_run_has_left(home: Home) -> None:
    run = home.run_folder("quick-1")
    with taken_cluster(home) as cluster:
        use_folder(run, cluster.folder, TERM)
        end_services(run, TERM)
        folder = cluster.folder
    serve(folder)
    end_services(run, TERM)
    assert current_state(folder) is None


def test_a_note_survives_a_home_that_has_moved(home: Home, tmp_path: Path) -> None:
    with taken_cluster(home) as cluster:
        use_folder(home.run_folder("quick-1"), cluster.folder, TERM)
        name = cluster.folder.name
    moved = Home(home.folder.rename(tmp_path / "moved"))
    assert services_folder(moved.run_folder("quick-1")) == moved.clusters / name


def test_only_a_process_with_the_lock_uses_the_cluster(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    assert given_cluster() is None
    asked = "from flows.run.shared_cluster import given_cluster; print(given_cluster() is None)"
    with taken_cluster(home) as cluster:
        for name, value in cluster.variables.items():
            monkeypatch.setenv(name, value)
        assert given_cluster() == cluster.folder
        child = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
        assert child.stdout == "True\n", "what a driver starts has its environment, but not the lock"
    assert given_cluster() is None


def test_a_driver_process_has_the_lock_and_knows_the_cluster(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[str, Any]()
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: given.update(options))
    with taken_cluster(home) as cluster, open_log(home, "quick-1", "driver.log") as log:
        start_driver_process(home, "quick-1", log, accept_drift=False, cluster=cluster)
        assert given["pass_fds"] == (cluster.lock.fileno(),)
        assert given["env"][CLUSTER_VARIABLE] == cluster.variables[CLUSTER_VARIABLE]
        start_driver_process(home, "quick-1", log, accept_drift=False)
    assert given["pass_fds"] == () and CLUSTER_VARIABLE not in given["env"]


def test_a_driver_that_ended_badly_ends_the_services_and_keeps_their_logs(home: Home) -> None:
    with taken_cluster(home) as cluster:
        serve(cluster.folder)
        cluster.ended_badly()
        assert not supervised(cluster.folder)
        serve(cluster.folder)
        (cluster.folder / "logs" / "ray.log").touch()
    assert not supervised(cluster.folder) and (cluster.folder / "logs" / "ray.log").exists()
    with taken_cluster(home) as again:
        assert again.folder == cluster.folder and not list((again.folder / "logs").iterdir())


def test_a_folder_that_cannot_be_cleared_is_passed_over(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_cluster(home) as cluster:
        first = cluster.folder
    (first / "supervisor").mkdir(parents=True)
    (first / "supervisor" / "state.json").write_text("no state")
    with taken_cluster(home) as cluster:
        assert cluster.folder != first
    (first / "supervisor" / "state.json").unlink()


def test_what_killed_commands_left_is_cleared_by_any_other(home: Home) -> None:
    with taken_cluster(home), taken_cluster(home) as second:
        remains = second.folder
    strangers = [home.clusters / "elsewhere-0", home.clusters / "elsewhere-1"]
    for folder in (remains, *strangers):
        (folder / "supervisor").mkdir(parents=True)
        (folder / "supervisor" / "driver.json").touch()
    os.utime(strangers[1] / "supervisor" / "driver.json", (0, 0))
    with taken_cluster(home):
        assert not remains.exists()
        assert [folder.exists() for folder in strangers] == [True, False], "a day of silence"


def test_a_driver_that_was_replaced_notes_nothing(home: Home) -> None:
    run = home.run_folder("quick-1")
    with taken_cluster(home) as cluster:
        use_folder(run, cluster.folder, TERM + 1)
        use_folder(run, None, TERM)
        assert services_folder(run) == cluster.folder
