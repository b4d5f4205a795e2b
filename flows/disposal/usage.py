"""Where the disk goes: the bytes of a home, by run and by kind of file.

Consumes the home's folder. Produces `DiskUsage`. A file that several runs share by hard links, as forks do with their parents',
counts in each of them and once in the total. Objects of a durable tier are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flows.run.home import Home
from yatt_core.tracker_kinds import TRACKER_KINDS

BLOCK = 512
"""Bytes of a block as `stat` counts them."""
OTHER = "other"
OF_RUNS = {
    "checkpoints": "checkpoints",
    "experience": "experience",
    "inputs": "inputs",
    "exports": "exports",
    "prefect": "prefect",
    "logs": "logs",
    "supervisor": "logs",
    **{kind.folder: "trackers" for kind in TRACKER_KINDS.values() if kind.folder is not None},
}
"""The kind of each entry of a run's folder; all others are of the kind `other`."""
OF_HOMES = {
    "hub": "hub",
    "mlflow.db": "trackers",
    "artifacts": "trackers",
    "group": "service group",
    "clusters": "clusters",
    "pipelines": "pipelines",
}
"""The kind of entries of a home's folder that belong to no run."""
LEDGER = "ledger"


@dataclass(slots=True)
class FolderUsage:
    """The bytes of a run's folder, or of a kind of entries of the home.

    kinds: bytes by kind.
    shared: bytes in files that have other names too, such as those that a fork shares with its parent.
    """

    name: str
    kinds: dict[str, int] = field(default_factory=dict)
    shared: int = 0

    @property
    def bytes(self) -> int:
        """All bytes."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The bytes of a home.

    runs: of each run that has a folder, largest first.
    unknown: of folders that look like those of runs, but belong to none that the ledger knows.
    home: of the rest of the home by kind.
    total: all bytes; a shared file counts once.
    """

    runs: tuple[FolderUsage, ...]
    unknown: tuple[FolderUsage, ...]
    home: FolderUsage
    total: int


def disk_usage(home: Home, runs: Collection[str], only: Collection[str] | None = None) -> DiskUsage:
    """Returns the bytes on this disk.

    runs: the ids of all runs of the ledger.
    only: those of them that are counted, each also if it has no folder, and nothing else of the home; None: everything.
    """
    own = list[FolderUsage]()
    unknown = list[FolderUsage]()
    rest = FolderUsage("home")
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in _entries(home, only):
        usage = FolderUsage(entry.name)
        is_run = entry.name in runs
        is_unknown = not is_run and entry.is_dir() and (entry / "spec.yaml").is_file()
        for path, status in _files(entry):
            kind = _kind_of(path, entry) if is_run or is_unknown else _kind_in_home(entry.name)
            size = status.st_blocks * BLOCK
            target = usage if is_run or is_unknown else rest
            target.kinds[kind] = target.kinds.get(kind, 0) + size
            if status.st_nlink > 1:
                target.shared += size
            identity = status.st_dev, status.st_ino
            if status.st_nlink == 1 or identity not in seen:
                total += size
                seen.add(identity)
        if is_run:
            own.append(usage)
        elif is_unknown:
            unknown.append(usage)
    return DiskUsage(_largest_first(own), _largest_first(unknown), rest, total)


def _entries(home: Home, only: Collection[str] | None) -> list[Path]:
    if only is not None:
        return [home.run_folder(run) for run in sorted(only)]
    return sorted(home.folder.iterdir()) if home.folder.is_dir() else []


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of a folder on this disk; a file with several names in it counts once."""
    found = {(status.st_dev, status.st_ino): status.st_blocks * BLOCK for _, status in _files(folder)}
    return sum(found.values())


def _files(entry: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the files at or below a path; links are not followed, and files that vanish meanwhile are left out."""
    if entry.is_dir() and not entry.is_symlink():
        for folder, _, names in os.walk(entry):
            for name in names:
                yield from _status(Path(folder) / name)
    else:
        yield from _status(entry)


def _status(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        yield path, path.lstat()
    except FileNotFoundError:
        return


def _kind_of(path: Path, run_folder: Path) -> str:
    return OF_RUNS.get(path.relative_to(run_folder).parts[0], OTHER)


def _kind_in_home(name: str) -> str:
    if name.startswith("ledger.db"):
        return LEDGER
    return next((kind for known, kind in OF_HOMES.items() if name == known or name.startswith(f"{known}-")), OTHER)


def _largest_first(usages: list[FolderUsage]) -> tuple[FolderUsage, ...]:
    return tuple(sorted(usages, key=lambda usage: (-usage.bytes, usage.name)))
