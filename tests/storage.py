"""A disk that lies: in a crash it drops whatever was not synced, as a real disk may when power is lost.

SIGKILL never shows a missing fsync, because the kernel still has everything. Here a scenario runs against a real folder
while each durable step (fsync, rename, mkdir, unlink) is watched, and a crash is simulated after every step: a `Crash`
creates, in another folder, a state that the disk may legally be in. The worst state contains only what was synced; in a
seeded one, each unsynced change has either reached the disk or not.

    a file's bytes        durable from the fsync of the file
    a name in a folder    (created, renamed, deleted) durable from the fsync of that folder

What each missing fsync would break (`tests.storage.missing` drops one by its place in the product, and
`tests/test_storage.py` proves that some test notices each of them):

    durable.write_file, the file          a chunk, manifest or Parquet file is torn: acknowledged data is lost
    durable.sync_folder in write_file     the file's name is lost, though it was acknowledged
    durable.sync_folder in make_folder    a new folder is lost, with everything acknowledged inside it
    durable.sync_folder in move_folder    a published checkpoint has lost its name
    durable.sync_file                     a checkpoint's object is torn after its publication
    durable.sync_folder in publish._seal  files below a checkpoint's folder are lost
    durable.sync_folder in ShardLog, _adopt_term, _published, find_unrecorded
                                          what a killed writer left is built upon and then lost
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.crash import Death, Scenario

TOLD = "told"
Choose = Callable[[], bool]
Step = Callable[[str], None]
WATCHED = ("rename", "mkdir")
REMOVALS = ("unlink", "rmdir")
"""Functions of `os`, by which `Path.unlink` and `shutil.rmtree` delete."""


@dataclass
class Inode:
    """A file or folder.

    durable: a file's bytes at its last fsync, None before the first.
    durable_names: a folder's names at its last fsync.
    """

    is_folder: bool
    durable: bytes | None = None
    visible: bytes = b""
    durable_names: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    unsynced: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    """Name changes since the last fsync, in order: (old name, new name, inode)."""

    def copy(self) -> Inode:
        """Returns a copy of the current state."""
        return Inode(
            self.is_folder,
            self.durable,
            self.visible,
            dict(self.durable_names),
            dict(self.names),
            list(self.unsynced),
        )


@dataclass(frozen=True)
class Crash:
    """The disk after one step: what is durable, and what was acknowledged by then."""

    step: str
    acknowledged: tuple[str, ...]
    inodes: dict[int, Inode]
    root: int

    def worst(self, folder: Path) -> Path:
        """Creates the state in which only synced changes survived."""
        return self._make(folder, lambda: False)

    def seeded(self, folder: Path, seed: int) -> Path:
        """Creates a state in which each unsynced change survived or not, chosen by the seed."""
        chance = random.Random(seed)
        return self._make(folder, lambda: chance.random() < 0.5)

    def killed(self, folder: Path) -> tuple[Path, Crash]:
        """Creates the state after a mere kill (the kernel still has everything); a later watch can continue from it."""
        return self._make(folder, lambda: True), self

    def _make(self, folder: Path, survives: Choose) -> Path:
        folder.mkdir()
        self._fill(folder, self.inodes[self.root], survives)
        return folder

    def _fill(self, folder: Path, inode: Inode, survives: Choose) -> None:
        for name, number in sorted(_names(inode, survives).items()):
            child = self.inodes[number]
            if child.is_folder:
                (folder / name).mkdir()
                self._fill(folder / name, child, survives)
            else:
                (folder / name).write_bytes(_bytes(child, survives))


def _names(folder: Inode, survives: Choose) -> dict[str, int]:
    """Returns the folder's names after those unsynced changes that survive."""
    names = dict(folder.durable_names)
    for old, new, number in folder.unsynced:
        if survives():
            if old is not None:
                names.pop(old, None)
            if new is not None:
                names[new] = number
    return names


def _bytes(file: Inode, survives: Choose) -> bytes:
    """Returns the file's bytes: as synced, as written, or, for a file that was never synced, a torn part."""
    if file.durable == file.visible or survives():
        return file.visible
    if file.durable is not None:
        return file.durable
    return file.visible[: len(file.visible) // 2] if survives() else b""


class LyingDisk:
    """Watches a folder and keeps a `Crash` after each durable step. Only one may be in use at a time, in one thread."""

    def __init__(self, folder: Path, before: Crash | None = None, ignored: Callable[[], bool] = lambda: False) -> None:
        self._folder = folder
        self._ignored = ignored
        self._numbers: dict[tuple[int, int], int] = {}
        self._open: list[int] = []
        self._inodes: dict[int, Inode] = {}
        self._acknowledged: list[str] = list(before.acknowledged) if before else []
        self._numbers_of_lost = itertools.count(-1, -1)
        self.crashes: list[Crash] = []
        self.root = self._begin(folder, before, before.root if before else 0)

    def acknowledge(self, word: str) -> None:
        """Notes that the product has acknowledged something to the scenario."""
        self._acknowledged.append(word)
        self._keep(f"{TOLD} {word}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Records every durable step inside the block."""
        patches = [mock.patch.object(os, "fsync", self._fsync())]
        patches += [mock.patch.object(Path, name, self._stepping(name, getattr(Path, name))) for name in WATCHED]
        patches += [mock.patch.object(os, name, self._removing(name, getattr(os, name))) for name in REMOVALS]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()
            for descriptor in self._open:
                os.close(descriptor)
            self._open.clear()

    def _fsync(self) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            os.fstat(descriptor)  # fails as a sync would; there is no other need of the real disk
            place = Path(f"/proc/self/fd/{descriptor}").readlink()
            if place != self._folder and not place.is_relative_to(self._folder):
                return
            self._look(self._folder, self._inodes[self.root])
            if not self._ignored():
                self._sync(descriptor)
            self._keep(f"sync {place.name}")

        return fsync

    def _stepping(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(path: Path, *arguments: Any, **keywords: Any) -> Any:
            result = real(path, *arguments, **keywords)
            if path.is_relative_to(self._folder):
                self._look(self._folder, self._inodes[self.root])
                self._keep(f"{name} {path.name}")
            return result

        return stepping

    def _removing(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def removing(path: str | Path, *, dir_fd: int | None = None) -> None:
            above = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
            real(path, dir_fd=dir_fd)
            if (above / path).is_relative_to(self._folder):
                self._look(self._folder, self._inodes[self.root])
                self._keep(f"{name} {Path(path).name}")

        return removing

    def _sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        inode = self._inodes[self._numbers[status.st_dev, status.st_ino]]
        if inode.is_folder:
            inode.durable_names = dict(inode.names)
            inode.unsynced.clear()
        else:
            inode.durable = inode.visible

    def _keep(self, step: str) -> None:
        inodes = {number: inode.copy() for number, inode in self._inodes.items()}
        self.crashes.append(Crash(step, tuple(self._acknowledged), inodes, self.root))

    def _begin(self, path: Path, before: Crash | None, number: int) -> int:
        """Takes over existing contents with the durable state that `before` records; without `before`, all is durable."""
        own = self._number(path)
        inode = self._inodes[own]
        old = before.inodes[number] if before else None
        if path.is_dir():
            inode.names = {
                child.name: self._begin(child, before, old.names[child.name] if old else 0)
                for child in sorted(path.iterdir())
            }
            if old is None:
                inode.durable_names = dict(inode.names)
            else:
                self._take_over_names(inode, old, before)
        else:
            inode.visible = path.read_bytes()
            inode.durable = old.durable if old else inode.visible
        return own

    def _take_over_names(self, inode: Inode, old: Inode, before: Crash | None) -> None:
        """Takes over unsynced changes of an earlier watch, renumbered; lost files get new numbers."""
        assert before is not None
        here = {old.names[name]: number for name, number in inode.names.items()}

        def renumbered(number: int) -> int:
            if number not in here:
                here[number] = next(self._numbers_of_lost)
                self._inodes[here[number]] = self._lost(before, number, renumbered)
            return here[number]

        inode.durable_names = {name: renumbered(number) for name, number in old.durable_names.items()}
        inode.unsynced = [(a, b, renumbered(number)) for a, b, number in old.unsynced]

    def _lost(self, before: Crash, number: int, renumbered: Callable[[int], int]) -> Inode:
        inode = before.inodes[number].copy()
        inode.durable_names = {name: renumbered(child) for name, child in inode.durable_names.items()}
        inode.unsynced = [(a, b, renumbered(child)) for a, b, child in inode.unsynced]
        inode.names = {}
        return inode

    def _number(self, path: Path) -> int:
        """Returns the number of a file or folder, held open so that its inode number is not reused."""
        status = path.stat(follow_symlinks=False)
        key = (status.st_dev, status.st_ino)
        if key not in self._numbers:
            self._open.append(os.open(path, os.O_RDONLY))
            self._numbers[key] = len(self._numbers)
            self._inodes[self._numbers[key]] = Inode(is_folder=path.is_dir())
        return self._numbers[key]

    def _look(self, path: Path, inode: Inode) -> None:
        """Finds changes since the last look: names in folders, bytes of files."""
        found = {child.name: self._number(child) for child in sorted(path.iterdir())}
        gone = {name: number for name, number in inode.names.items() if found.get(name) != number}
        new = {name: number for name, number in found.items() if inode.names.get(name) != number}
        for name, number in new.items():
            old = next((was for was, same in gone.items() if same == number), None)
            inode.unsynced.append((old, name, number))
            if old is not None:
                del gone[old]
        inode.unsynced += [(name, None, number) for name, number in gone.items() if name not in found]
        inode.names = found
        for name, number in found.items():
            child = self._inodes[number]
            if child.is_folder:
                self._look(path / name, child)
            else:
                child.visible = (path / name).read_bytes()


def kills(scenario: Scenario, within: Path, prepare: Callable[[Path], Any] = lambda _: None) -> Iterator[Death]:
    """Yields what `tests.crash.deaths` does of a scenario that changes nothing but files of its folder, without a process each.

    A killed process leaves all that it has written, synced or not, so the folder as it was after each step of one whole
    execution is what a process that died there would have left.
    """
    whole = within / "whole"
    whole.mkdir()
    prepared = prepare(whole)
    disk = LyingDisk(whole)
    with disk.watched():
        scenario(whole, disk.acknowledge)
    steps = [crash for crash in disk.crashes if not crash.step.startswith(TOLD)]
    for number, crash in enumerate(steps, 1):
        folder, _ = crash.killed(within / f"step-{number}")
        yield Death(number, folder, list(crash.acknowledged), prepared)
    yield Death(len(steps) + 1, whole, list(disk.crashes[-1].acknowledged), prepared)


def place_of_sync() -> str:
    """Returns the functions and lines of the product that request the current fsync, innermost first."""
    frame = sys._getframe()
    names = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("yatt_core"):
            names.append(f"{module.removeprefix('yatt_core.')}.{frame.f_code.co_name}:{frame.f_lineno}")
            if frame.f_code.co_name != "sync_folder":
                return " in ".join(names)
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the product"


def missing(place: str) -> Callable[[], bool]:
    """Returns a predicate for `LyingDisk(ignored=...)` that drops the fsync of one place."""
    return lambda: place_of_sync() == place
