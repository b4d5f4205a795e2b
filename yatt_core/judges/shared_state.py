"""The state of an endpoint that all processes of a home share: a small file with a lock.

Consumes the folder that the processes see. Produces the state, which a process reads again only if its file has changed. Without
a folder, the state is that of this process alone. The file may be deleted at any time; what cannot be read counts as new.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from yatt_core import durable
from yatt_core.file_lock import file_lock
from yatt_core.judges.limits import EndpointState

Found = TypeVar("Found")
ENDPOINTS = "endpoints"
"""The folder in a home; no run has this name, since a run's name ends in a number."""
LOCK_TRIES = 200
LOCK_PAUSE_SECONDS = 0.01
"""A lock is held for less than a millisecond; a process that was suspended with it must not hold up all runs."""
_log = logging.getLogger(__name__)


def state_file(folder: Path, url: str, model: str, key: str | None) -> Path:
    """Returns the file of the endpoint's state for a key and a model.

    Its name tells nothing of the key: a digest that takes a while to compute, since keys may be short.
    """
    address = f"{url}\0{model}".encode()
    digest = hashlib.scrypt((key or "").encode(), salt=hashlib.sha256(address).digest(), n=1 << 14, r=8, p=1, dklen=16)
    return folder / f"{digest.hex()}.json"


class SharedState:
    """One endpoint's state.

    path: its file; None: the state is not shared.
    now: the clock, in seconds since 1970.
    """

    def __init__(self, path: Path | None, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._state = EndpointState()
        self._version: tuple[int, int] | None = None
        if path is not None:
            durable.make_folder(path.parent)

    def seen(self) -> EndpointState:
        """Returns a copy of the state, as of now."""
        with self._lock:
            self._refresh()
            state = copy.copy(self._state)
        state.seen_at(self._now())
        return state

    def change(self, how: Callable[[EndpointState, float], Found]) -> Found:
        """Changes the state while no other process does, and returns what the change returns.

        how: takes the state, which it changes, and the time.

        Raises `InfrastructureError` if the file cannot be written.
        """
        with self._lock:
            if self._path is None:
                return self._changed(how)
            for _ in range(LOCK_TRIES):
                with file_lock(self._path.with_suffix(".lock")) as alone:
                    if alone:
                        self._refresh()
                        before = copy.copy(self._state)
                        found = self._changed(how)
                        if self._state != dataclasses.replace(before, changed_at=self._state.changed_at):
                            self._write(self._path)
                        return found
                time.sleep(LOCK_PAUSE_SECONDS)
            _log.warning("%s: another process keeps its lock; this one counts for itself meanwhile", self._path)
            return self._changed(how)

    def _changed(self, how: Callable[[EndpointState, float], Found]) -> Found:
        now = self._now()
        self._state.seen_at(now)
        return how(self._state, now)

    def _refresh(self) -> None:
        """Reads the file if it is another one than this process has read or written."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._version:
                return
            self._version = version
            self._state = EndpointState.from_json(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            if self._version is not None:
                # Somebody has deleted it, for example to end a wait that an endpoint asked for.
                self._version = None
                self._state = EndpointState()
        except (OSError, LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
            self._state = EndpointState()
            _log.warning("%s: cannot be read, so the endpoint's state begins anew: %s", self._path, error)

    def _write(self, path: Path) -> None:
        with durable.refusals(f"{path}: cannot be written"):
            temporary = path.with_suffix(".new")
            temporary.write_text(json.dumps(self._state.to_json()))
            status = temporary.stat()
            temporary.rename(path)
        self._version = (status.st_mtime_ns, status.st_ino)
