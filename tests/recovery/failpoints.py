"""Failpoints: places in the product where a process dies, each once in a chain of processes.

All processes of a chain share a folder:

    armed       path of the run folder; places kill while this file exists
    used        names of the places that have killed, one per line, made durable before the kill
    published   one line per published shard manifest, armed or not: its folder within the run folder
    spared      regular expression of places that do not kill
    full        part of a path; while this file exists, the product's fsync below such a path finds the disk full

A place is named by its function and step, found on the stack or by wrapping; the product contains no hook. Imports only
the standard library, because actors load it before anything else (`site/sitecustomize.py`).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import inspect
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "YATT_TEST_FAILPOINTS"
ROOT = Path(__file__).parent.parent.parent
PRODUCT = tuple(f"{ROOT / name}{os.sep}" for name in ("flows", "db", "yatt_core", "ops"))
BELOW = tuple(str(ROOT / "yatt_core" / name) for name in ("durable.py", "manifests.py"))
"""Every file is written by these modules, so a place is named by their caller."""
SHARD = re.compile(r"w\d+-s\d+\.t\d+(\.\d+)?")
SYNCED = re.compile(r": (fsync|mkdir) of ")
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")
_PATHLIB = Path.rename.__code__.co_filename
_fsync = os.fsync
GONE_SECONDS = 30.0


class Failpoints:
    """The failpoints of one process."""

    def __init__(self, folder: Path) -> None:
        self._armed = folder / "armed"
        self._used = folder / "used"
        self._published = folder / "published"
        self._full = folder / "full"
        self._spared = folder / "spared"
        self._known: set[str] = set()

    def in_driver(self, place: str) -> None:
        """Kills the driver at a place, unless a driver has died there before."""
        if self._take(f"driver dies: {place}"):
            _kill(os.getpid())

    def in_actor(self, place: str) -> None:
        """Kills the driver while an actor is at a place, and another time the actor itself.

        The actor does not die at fsync and mkdir: that equals a death between two renames, and `tests.storage` covers
        lost bytes.
        """
        name = f"driver dies while an actor is at: {place}"
        driver = self._await_driver() if self._is_new(name) else None
        if driver and self._take(name):
            with suppress(ProcessLookupError):
                os.kill(driver, signal.SIGKILL)
            _wait_until_gone(driver)
        elif not SYNCED.search(place) and self._take(f"actor dies: {place}"):
            _kill(os.getpid())

    def published(self, manifest: Path) -> None:
        """Notes that a shard's manifest was published, whether places kill or not."""
        _append(self._published, "/".join(manifest.parts[-4:-1]))

    def synced(self, path: Path) -> None:
        """Raises `OSError` while the disk must appear full; called before each sync of a file or folder."""
        with suppress(FileNotFoundError):
            if self._full.read_text() in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_new(self, name: str) -> bool:
        """Returns whether nothing has died at a place yet."""
        if name in self._known or not self._armed.exists() or self._is_spared(name):
            return False
        self._known = set(self._used.read_text().splitlines())
        return name not in self._known

    def _is_spared(self, name: str) -> bool:
        return self._spared.exists() and re.search(self._spared.read_text(), name) is not None

    def _await_driver(self) -> int | None:
        """Waits for a living driver of the armed run; actors that continue to work between two drivers pause here."""
        deadline = time.monotonic() + GONE_SECONDS
        while (driver := self._driver()) is None and self._armed.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return driver

    def _driver(self) -> int | None:
        """Returns the pid of the living driver of the armed run, if any."""
        try:
            told = Path(self._armed.read_text()) / "supervisor" / "driver.json"
            pid = int(json.loads(told.read_text())["pid"])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if b"tests.recovery" in command else None

    def _take(self, name: str) -> bool:
        if name in self._known or not self._armed.exists() or self._is_spared(name):
            return False
        with self._used.open("a+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            self._known = set(stream.read().splitlines())
            if name in self._known:
                return False
            stream.write(f"{name}\n")
            stream.flush()
            _fsync(stream.fileno())
        self._known.add(name)
        return True


def _append(path: Path, line: str) -> None:
    with path.open("a") as stream:
        stream.write(f"{line}\n")


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def _wait_until_gone(pid: int) -> None:
    """Waits until a process is gone, so that the actor's next steps happen without a driver."""
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                time.sleep(0.005)
                continue
        return


def watch_files(
    reach: Callable[[str], None],
    published: Callable[[Path], None] | None = None,
    synced: Callable[[Path], None] | None = None,
) -> None:
    """Turns each durable step of the product (fsync, rename, new folder, deletion) into a place."""

    def watched(owner: Any, name: str, what: Callable[..., Path]) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def stepping(*arguments: Any, **keywords: Any) -> Any:
            function = _product_function()
            if function is not None and synced and name == "fsync":
                synced(what(*arguments))
            result = real(*arguments, **keywords)
            if function is not None:
                path = what(*arguments)
                if published and path.name == "manifest.json" and SHARD.fullmatch(path.parent.name):
                    published(path)
                reach(f"{function}: {name} of {_NUMBERS.sub('#', path.name)}")
            return result

        setattr(owner, name, stepping)

    watched(os, "fsync", lambda descriptor: Path(f"/proc/self/fd/{descriptor}").readlink())
    watched(Path, "rename", lambda _, target: Path(target))
    watched(Path, "mkdir", lambda path, *_: path)
    watched(Path, "unlink", lambda path, *_: path)


def _product_function() -> str | None:
    """Returns the product's function that makes a durable step, or None if a library does."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == _PATHLIB:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not frame.f_code.co_filename.startswith(PRODUCT):
        return None
    while frame is not None and frame.f_code.co_filename in BELOW:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else name_of(frame)


def name_of(frame: Any) -> str:
    """Returns a frame's function as `module.Class.function`."""
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"


def around(reach: Callable[[str], None], owner: Any, name: str) -> None:
    """Adds a place before and a place after a function or method; for a generator, also a place at each item."""
    real = inspect.getattr_static(owner, name)
    label = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"

    @functools.wraps(real)
    def call(*arguments: Any, **keywords: Any) -> Any:
        reach(f"before {label}")
        result = real(*arguments, **keywords)
        reach(f"after {label}")
        return result

    @functools.wraps(real)
    def items(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        reach(f"before {label}")
        for item in real(*arguments, **keywords):
            reach(f"an item of {label}")
            yield item
        reach(f"after {label}")

    setattr(owner, name, items if inspect.isgeneratorfunction(real) else call)
