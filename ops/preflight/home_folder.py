"""Checks the home folder: whether runs can be made in it, and whether its ledger is there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.run.home import Home
from yatt_core.durable import FULL
from yatt_core.errors import ConfigurationError

SQLITE = "sqlite:///"


def check_folder(home: Path) -> Path:
    """The home, or the nearest folder above it that exists. Raises `ConfigurationError` where no folder can be made in it."""
    folder = existing_parent(home)
    if not folder.is_dir():
        raise ConfigurationError(f"{home}: {folder} is no folder; choose another with --home or $YATT_HOME")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{home}: {folder} is not writable; choose another folder with --home or $YATT_HOME")
    try:
        # Permissions do not tell: some file systems refuse even root, and some take nothing new.
        TemporaryDirectory(dir=folder, prefix=".yatt-").cleanup()
    except OSError as error:
        if error.errno not in FULL:  # which is an outage, said by whoever needs the room
            raise ConfigurationError(
                f"{home}: no folder can be made in {folder}: {error.strerror}; choose another with --home or $YATT_HOME"
            ) from None
    return folder


def existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists.

    Raises `ConfigurationError` for a path that cannot be looked at, such as one with too long a name.
    """
    try:
        while not folder.exists():
            folder = folder.parent
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: {error.strerror}; choose another folder with --home or $YATT_HOME"
        ) from None
    return folder


def ledger_file(home: Home) -> Path | None:
    """The file of a ledger on SQLite, whether it exists or not; None for a ledger on another database."""
    return Path(home.ledger.removeprefix(SQLITE)) if home.ledger.startswith(SQLITE) else None
