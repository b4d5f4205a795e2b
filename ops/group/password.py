"""The password that the group's Prefect server requires of every client.

It is needed because anyone who can create a flow run there can make the worker run any command line, as the
group's user and with the group's databases in its environment. Consumes the environment of `yatt up`, or a file
in the group's folder that only its owner can read. The file is created if the environment names no password, and
keeps its contents across restarts.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from flows.prefect_io.prefect_server import SERVER_PASSWORD_VARIABLE
from flows.run.home import Home
from yatt_core.durable import make_folder, refusals

FILE = "prefect-password"
USER = "yatt"


def password_file(home: Home) -> Path:
    """Returns the file of the group's own password, as `user:password`.

    It does not exist if the environment names a password.
    """
    return home.group / FILE


def password_of(home: Home) -> str:
    """Returns the password that the members use: the environment's, else the group's own; empty if there is neither."""
    return os.environ.get(SERVER_PASSWORD_VARIABLE) or own_password(home)


def settle_password(home: Home) -> None:
    """Creates the group's own password once before a start, or removes it if the environment names another."""
    if os.environ.get(SERVER_PASSWORD_VARIABLE):
        password_file(home).unlink(missing_ok=True)
    elif not own_password(home):
        _make(password_file(home))


def own_password(home: Home) -> str:
    """Returns the password in the group's file; empty if there is none."""
    file = password_file(home)
    with refusals(f"{file}: cannot be read"):
        return file.read_text().strip() if file.exists() else ""


def _make(file: Path) -> None:
    make_folder(file.parent)
    with refusals(f"{file}: cannot be written"):
        descriptor, fresh = tempfile.mkstemp(prefix=f".{FILE}.", dir=file.parent)  # of mode 0600
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{USER}:{secrets.token_hex(32)}\n")
            stream.flush()
            os.fsync(descriptor)
        Path(fresh).replace(file)
