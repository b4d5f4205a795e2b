"""A backup has the code of a workload in a file: restored elsewhere, the run goes on and ends with the same bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from flows.backup.folder import BackupFolder
from flows.backup.restore import restore_backup
from flows.run.home import Home
from tests.flows.backup.scenarios import backup_of
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.installed import FILE_MODULE

COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"


def test_a_restored_run_has_the_code_of_its_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    file = tmp_path / "mine.py"
    file.write_text("from tests.workloads.counting import Counting\nclass Mine(Counting):\n    pass\n")
    own = f"workload={{kind: custom, file: '{file}:Mine'}}"
    undisturbed, struck = (OwnRun.of(tmp_path / name, COUNTING, own) for name in ("undisturbed", "struck"))
    undisturbed.drive()
    assert struck.drive("after learn:3") is None
    backup_of(struck.home, tmp_path / "backups")
    file.unlink()
    backups = BackupFolder(tmp_path / "backups")
    home = Home(tmp_path / "restored")
    restore_backup(backups, backups.find(None), home, home.ledger_address)
    for name in [name for name in sys.modules if name.startswith(FILE_MODULE)]:
        monkeypatch.delitem(sys.modules, name)  # as in a process that has not executed the file
    restored = OwnRun.opened(home, struck.run)
    restored.drive()
    assert restored.results().weights_digest == undisturbed.results().weights_digest is not None
    assert restored.results().metrics_digest == undisturbed.results().metrics_digest
