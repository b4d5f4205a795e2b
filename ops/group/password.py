"""What the group's Prefect asks everybody for: whoever may make a flow run there has the worker run any command line, as the
group's user and with the group's databases in its environment.

Consumes the environment of `yatt up`, or a file in the group's folder that its owner alone can read, made where the environment
names no password; it is the same for every start of the group.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from flows.prefect_io.prefect_server import SERVER_PASSWORD_VARIABLE
from flows.run.home import Home
from yatt_core.durable import make_folder, refusals

FILE, USER = "prefect-password", "yatt"


def password_file(home: Home) -> Path:
    """Where the group's own password lies, as `user:password`; not there where the environment named one."""
    return home.group / FILE


def password_of(home: Home) -> str:
    """What the group's members ask for and bring: the environment's, else the group's own; empty where there is neither."""
    return os.environ.get(SERVER_PASSWORD_VARIABLE) or own_password(home)


def settle_password(home: Home) -> None:
    """For a group that is about to start: makes its own password once, or removes it where the environment names another."""
    if os.environ.get(SERVER_PASSWORD_VARIABLE):
        password_file(home).unlink(missing_ok=True)
    elif not own_password(home):
        _make(password_file(home))


def own_password(home: Home) -> str:
    """The one in the group's file; empty where there is none."""
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
