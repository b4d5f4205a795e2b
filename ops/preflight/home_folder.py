"""Checks the home folder: whether runs can be created in it, and where its ledger is."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.run.home import Home
from yatt_core.durable import FULL
from yatt_core.errors import ConfigurationError

SQLITE = "sqlite:///"


def check_folder(home: Path) -> Path:
    """Returns the home folder, or its nearest existing parent.

    Raises `ConfigurationError` if no folder can be created in it.
    """
    folder = existing_parent(home)
    if not folder.is_dir():
        raise ConfigurationError(f"{home}: {folder} is not a folder; choose another with --home or $YATT_HOME")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{home}: {folder} is not writable; choose another folder with --home or $YATT_HOME")
    try:
        # Permissions are not enough: some file systems refuse even root, and some accept no new files.
        TemporaryDirectory(dir=folder, prefix=".yatt-").cleanup()
    except OSError as error:
        if error.errno not in FULL:  # a full disk is an outage, reported where the space is needed
            raise ConfigurationError(
                f"{home}: cannot create a folder in {folder}: {error.strerror}; "
                "choose another with --home or $YATT_HOME"
            ) from None
    return folder


def existing_parent(folder: Path) -> Path:
    """Returns the folder itself, or its nearest existing parent.

    Raises `ConfigurationError` for a path that cannot be accessed, such as one with too long a name.
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
    """Returns the file of a ledger on SQLite, whether or not it exists; None for a ledger on another database."""
    return Path(home.ledger.removeprefix(SQLITE)) if home.ledger.startswith(SQLITE) else None
