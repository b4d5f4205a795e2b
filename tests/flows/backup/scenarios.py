"""Backups and restorations as scenarios for a child process that is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from db.ledger import Ledger
from flows.backup.create import MadeBackup, create_backup
from flows.backup.folder import BackupFolder
from flows.backup.restore import restore_backup
from flows.run.home import Home

HOME = "runs"
BACKUPS = "backups"
NEW = "elsewhere"


def backup_of(home: Home, folder: Path) -> MadeBackup:
    with Ledger.open(home.ledger, migrate=False) as ledger:
        return create_backup(home, ledger, BackupFolder(folder))


def create(folder: Path, tell: Callable[[str], None]) -> None:
    """Backs up the home in the folder."""
    tell(backup_of(Home(folder / HOME), folder / BACKUPS).id)


def restore(folder: Path, tell: Callable[[str], None]) -> None:
    """Restores the newest backup in the folder."""
    backups = BackupFolder(folder / BACKUPS)
    home = Home(folder / NEW)
    restore_backup(backups, backups.find(None), home, home.ledger_address)
    tell("restored")
