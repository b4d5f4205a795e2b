"""Python files that a spec names: `path/of/file.py:name`, the digest of their bytes, and the copy that a run keeps of each.

Consumes a file's name and digest, and the folder of a run that may have a copy. Produces what the file defines. Bytes with
another digest are never executed, and a copy always comes before the file that was named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.installed import find_executed, find_in_file

CODE = "code"
"""Folder in a run's folder, and kind of the manifests below it."""
COPY = "reward.py"
"""Name of each copy, whatever it contains: files with the same contents share one."""
LARGEST_BYTES = 4 << 20
"""Maximum size of a file."""
FORM = "path/of/file.py:function"


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file that a spec names.

    place: the key that names it, for messages.
    sha256: the digest of its bytes; None if any contents are meant.
    """

    place: str
    path: Path
    attribute: str
    sha256: str | None

    @classmethod
    def named(cls, place: str, file: str, sha256: str | None) -> CodeFile:
        """Returns the file of a name as a spec has it."""
        path, _, attribute = file.rpartition(":")
        return cls(place, Path(path), attribute, sha256)

    @property
    def folder(self) -> str:
        """The folder of a run's copy, relative to the run's folder."""
        return f"{CODE}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file as another process receives it, which needs no other file.

    path: where the bytes come from, for tracebacks.
    code: the bytes, each as one character.
    """

    path: str
    code: str

    @classmethod
    def read(cls, code: CodeFile, run_folder: Path | None) -> SentFile:
        """Returns a file's contents. Raises as `read_code` does."""
        path, data = read_code(code, run_folder)
        return cls(str(path), data.decode("latin-1"))

    def find(self, attribute: str, place: str) -> Callable[..., Any]:
        """Returns what the file defines, after executing it. Raises as `find_in_file` does."""
        return find_in_file(Path(self.path), self.code.encode("latin-1"), attribute, place)


def read_code(code: CodeFile, run_folder: Path | None) -> tuple[Path, bytes]:
    """Returns a file and its bytes: the run's copy, or the named file if the run has no copy yet.

    run_folder: None before there is a run.

    Raises `DataError` for a copy that has changed, and `ConfigurationError` for a named file that has changed since
    the spec was read, or cannot be read.
    """
    copy = None if run_folder is None else run_folder / code.folder / COPY
    path = code.path if copy is None or not copy.exists() else copy
    data = read_code_file(path, code.place)
    if (found := hashlib.sha256(data).hexdigest()) == (code.sha256 or found):
        return path, data
    if path == copy:
        raise DataError(f"{path}: sha256 is {found}, expected {code.sha256}; restore the run's copy of {code.path}")
    raise ConfigurationError(
        f"{code.place}: {path} has changed: its sha256 is {found}, but the spec says {code.sha256}; restore it, or name it "
        "again to use its present contents"
    )


def load_code(code: CodeFile, run_folder: Path | None = None) -> Callable[..., Any]:
    """Returns what a file defines, after executing it unless this process has done so with the same bytes.

    run_folder: as for `read_code`, whose copy is needed only once in a process.

    Raises as `read_code` does, and `ConfigurationError` for a file that cannot be executed or lacks the name.
    """
    if code.sha256 is not None and run_folder is None:
        executed = find_executed(code.sha256, code.attribute, code.place)
        if executed is not None:
            return executed
    path, data = read_code(code, run_folder)
    return find_in_file(path, data, code.attribute, code.place)


def read_code_file(path: Path, place: str) -> bytes:
    """Returns the bytes of a Python file.

    place: the place that names it, for messages.
    """
    if not path.is_file():
        found = "is not a regular file" if path.exists() else "does not exist"
        raise ConfigurationError(f"{place}: {path} {found}; expected {FORM}")
    try:
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise ConfigurationError(f"{place}: {path} has {size} bytes; at most {LARGEST_BYTES} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{place}: {path} cannot be read: {error.strerror}") from None
