"""A list of rows in a JSON file of the home folder, changed under a lock and replaced as a whole.

Consumes and produces the file, which is read for every check, so that a change takes effect at once in every process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.durable import refusal
from yatt_core.errors import ConfigurationError, YattError

WRONG_PLACE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR),
    }
)
"""System errors that can be avoided by choosing another folder; all others are treated as faults of the disk."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a file. Safe to use from several processes.

    path: the file, `{"KEY": [row, ...]}`.
    key: the name of the list.
    mode: the mode of a new file.
    forbidden: bits of the mode with which the file is refused.
    danger: what a forbidden bit means, for the error message.
    """

    path: Path
    key: str
    mode: int
    forbidden: int
    danger: str

    def read(self) -> list[Row]:
        """Returns the rows; none if there is no file.

        Raises `ConfigurationError` if the file's mode is refused or its content is wrong, `InfrastructureError` for a
        fault of the disk.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise refusal(f"{self.path}: cannot be read", error) from None
            raise ConfigurationError(f"{self.path}: cannot be read: {error.strerror}") from None
        with open(descriptor, encoding="utf-8") as stream:  # noqa: PTH123 - the mode of this open file is checked
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & self.forbidden:
                raise ConfigurationError(
                    f"{self.path}: its mode is {mode:04o}, which {self.danger}; expected {self.mode:04o}"
                )
            try:
                return [dict(row) for row in json.load(stream)[self.key]]
            except (ValueError, KeyError, TypeError) as error:
                raise self.wrong(error) from None

    def wrong(self, error: Exception) -> YattError:
        """Returns the error for a file whose content is not that of this class."""
        return ConfigurationError(f"{self.path}: not a file of {self.key}: {error!r}")

    @contextmanager
    def changing(self) -> Iterator[list[Row]]:
        """Yields the rows for modification, and writes them if the block ends without an error.

        Raises `ConfigurationError` if the folder is not writable, `InfrastructureError` for a fault of the disk.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path.with_name(f".{self.key}.lock"), "w") as lock:  # noqa: PTH123 - a lock needs the open file
                fcntl.flock(lock, fcntl.LOCK_EX)
                rows = self.read()
                yield rows
                self._write(rows)
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise refusal(f"{self.path}: cannot be written", error) from None
            raise ConfigurationError(
                f"{self.path}: cannot be written: {error.strerror}: {error.filename}; "
                "choose a home folder that this user can write to, with --home or $YATT_HOME"
            ) from None

    def _write(self, rows: list[Row]) -> None:
        text = json.dumps({self.key: rows}, indent=1) + "\n"
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.mode)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - opened with its mode
            os.fchmod(stream.fileno(), self.mode)  # whatever the umask is
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self.path)
