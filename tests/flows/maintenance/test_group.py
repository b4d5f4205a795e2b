"""`yatt up` schedules maintenance as `maintenance.yaml` says; its worker runs it, and `yatt status` shows the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.backup.folder import BackupFolder
from flows.backup.verify import verify_backup
from flows.maintenance.record import read_results
from flows.run.home import Home
from tests.flows.group import Group, running_group
from tests.ops.audited import make_sound_run

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
NAME = "/deployments/name/yatt-maintenance/daily"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Group]:
    home = tmp_path_factory.mktemp("group") / "runs"
    make_sound_run(Home(home))
    with running_group(home, service_environment) as group:
        yield group


def deployed(group: Group, cron: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = group.ask(NAME)
    except OSError:
        return None
    return found if [each["schedule"]["cron"] for each in found["schedules"]] == [cron] else None


def test_maintenance_is_scheduled_changed_and_run_by_the_worker(group: Group, tmp_path: Path) -> None:
    group.await_true("the deployment", lambda: deployed(group, "0 3 * * *"))
    target = tmp_path / "backups"
    home = Home(group.home)
    (group.home / "maintenance.yaml").write_text(f'cron: "30 4 * * *"\nbackup: {{to: "{target}", keep: 3}}\n')
    group.await_true("the new schedule", lambda: deployed(group, "30 4 * * *"))
    group.prefect("deployment", "run", "yatt-maintenance/daily")
    group.await_true("a result", lambda: read_results(home))
    (result,) = read_results(home)
    assert result.ok, result.trouble
    assert result.by.startswith("flow run ") and [step.name for step in result.steps][-2:] == ["backup", "database"]
    (backup,) = BackupFolder(target).ids()
    assert verify_backup(BackupFolder(target), backup).sound
    status = group.yatt("status")
    assert [step["name"] for step in status["maintenance"]["steps"]] == [step.name for step in result.steps]
    query = {"flows": {"name": {"any_": ["yatt-maintenance"]}}}
    (flow_run,) = [each for each in group.ask("/flow_runs/filter", query) if each["state_type"] != "SCHEDULED"]
    group.await_true("its end", lambda: group.ask(f"/flow_runs/{flow_run['id']}")["state_type"] == "COMPLETED")
