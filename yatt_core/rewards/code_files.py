"""Files with reward functions: each run keeps a copy of every file that its spec names, and executes only this copy.

Consumes the digests in a spec, and the named files as long as a run has no copy of its own. Produces `code/SHA256/`
in the run's folder, on both storage tiers: the file and its manifest. Contents with another digest are never executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from yatt_core import durable
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import MANIFEST, entry_of_bytes, publish_manifest
from yatt_core.spec.reading.code_files import read_code_file
from yatt_core.spec.rewards.scheme import FunctionPart, RewardSpec
from yatt_core.storage.run_store import RunStore

CODE = "code"
"""Folder in a run's folder, and kind of the manifests below it."""
COPY = "reward.py"
"""Name of each copy: files with the same contents share one."""


def settle_code(rewards: RewardSpec, run_folder: Path, store: RunStore, parent: Path | None = None) -> None:
    """Gives a run its copies of the files that its rewards name, on both storage tiers; existing copies are kept.

    parent: folder of the run from which a fork has its files.

    Raises as `read_code` does. Safe to call again, and by several processes at once.
    """
    fetch_code(rewards, run_folder, store)
    for part in _file_parts(rewards):
        if not (run_folder / _folder(part) / MANIFEST).exists():
            data, folder = read_code(part, parent)[1], run_folder / _folder(part)
            durable.make_folder(folder)
            durable.write_file(folder / COPY, data)
            publish_manifest(folder, CODE, {}, {COPY: entry_of_bytes(data)})
        store.publish(_folder(part))


def fetch_code(rewards: RewardSpec, run_folder: Path, store: RunStore) -> None:
    """Fetches the copies that a run's folder lacks, if the durable tier has them."""
    for part in _file_parts(rewards):
        if not (run_folder / _folder(part) / MANIFEST).exists():
            store.fetch(_folder(part))


def read_code(part: FunctionPart, run_folder: Path | None) -> tuple[Path, bytes]:
    """Returns a part's file and its bytes: the run's copy, or the named file if the run has no copy yet.

    run_folder: None before there is a run.

    Raises `DataError` for a copy that has changed, and `ConfigurationError` for a named file that has changed since
    the spec was read, or cannot be read.
    """
    assert part.path is not None, "the caller has a part with a file"
    place = f"rewards.parts {part.name!r}: file"
    copy = None if run_folder is None else run_folder / _folder(part) / COPY
    path = part.path if copy is None or not copy.exists() else copy
    data = read_code_file(path, place)
    if (found := hashlib.sha256(data).hexdigest()) == (part.sha256 or found):
        return path, data
    if path == copy:
        raise DataError(f"{path}: sha256 is {found}, expected {part.sha256}; restore the run's copy of {part.path}")
    raise ConfigurationError(
        f"{place}: {path} has changed: its sha256 is {found}, but the spec says {part.sha256}; restore it, or name it "
        "again to use its present contents"
    )


def _file_parts(rewards: RewardSpec) -> Iterator[FunctionPart]:
    return (part for part in rewards.functions if part.file is not None)


def _folder(part: FunctionPart) -> str:
    """Returns the folder of a run's copy, relative to the run's folder."""
    return f"{CODE}/{part.sha256}"
