"""Copies the logs of actors on nodes with disks of their own to the driver's disk, where `yatt logs` reads them.

Consumes the nodes to ask; each answers with the bytes that the driver's copies lack. Produces a folder for each disk in the
run's folder of logs, with copies of the files under the same names, and a note of whether the node is gone. Whatever
fails costs only log records: nothing of it reaches the run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray

from yatt_core import durable
from yatt_core.cluster.background_calls import calling_ray
from yatt_core.cluster.nodes import on_node
from yatt_core.errors import InfrastructureError
from yatt_core.logs import COPIED, LOG_NAME, LOST, NOTE, PARTS, log_file

PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 10.0
WAIT_SECONDS = 0.5
"""Pause between two rounds, how long a round waits for the nodes, and how long one call of Ray does."""
FILE_BYTES = 1 << 20
ANSWER_BYTES = 4 << 20
"""Maximum number of bytes of a file, and of all files, in an answer."""
log = logging.getLogger(__name__)

Sizes = Mapping[str, int]
Answer = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LogSource:
    """A disk whose logs are copied.

    name: the name of the node that is asked.
    node: its id.
    disk: distinguishes the disk from others of nodes of that name.
    """

    name: str
    node: str
    disk: str

    @property
    def folder(self) -> str:
        """The name of the folder with the copies."""
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in self.name)
        return f"{COPIED}{safe}.{self.disk[:8]}"


Ask = Callable[[Mapping[LogSource, Sizes]], Mapping[LogSource, Answer]]
"""Asks the nodes for what follows the copies' sizes; those that do not answer are left out."""


def new_bytes(run_folder: str, sizes: Sizes) -> dict[str, bytes]:
    """Returns what the files of logs of this node's disk have after the given sizes, by name. Runs on the node."""
    found = dict[str, bytes]()
    left = ANSWER_BYTES
    for path in sorted((Path(run_folder) / "logs").glob("*.jsonl")):
        if LOG_NAME.fullmatch(path.name) and not path.is_symlink() and left > 0:
            with path.open("rb") as stream:
                stream.seek(sizes.get(path.name, 0))
                data = stream.read(min(FILE_BYTES, left))
            left -= len(data)
            if data:
                found[path.name] = data
    return found


class NodeLogs:
    """Copies logs in a thread of its own while there are nodes with other disks.

    ask: a substitute for the nodes, for tests.
    """

    def __init__(self, run_folder: Path, ask: Ask | None = None) -> None:
        self._folder = run_folder
        self._ask = ask or RayNodes(run_folder)
        self._sources: dict[LogSource, float] = {}
        self._ending = Event()
        self._thread: Thread | None = None

    def follow(self, sources: tuple[LogSource, ...]) -> None:
        """Copies the logs of these disks from now on; nodes that are no longer among them are gone."""
        gone = {source: at for source, at in self._sources.items() if source not in sources}
        self._sources = {source: self._sources.get(source, time.time()) for source in sources}
        for source, at in gone.items():
            self._note(source, at)
        if self._sources and self._thread is None:
            self._thread = Thread(target=self._run, name="node-logs", daemon=True)
            self._thread.start()

    def copy(self) -> None:
        """Copies what is new on all disks, and notes which nodes do not answer."""
        sources = dict(self._sources)
        answers = self._ask({source: self._sizes(source) for source in sources})
        for source, at in sources.items():
            if source not in answers:
                self._note(source, at)
                continue
            self._append(source, answers[source])
            if source in self._sources:
                self._sources[source] = time.time()
            self._note(source, None)

    def end(self, last: bool = True) -> None:
        """Ends the thread. last: whether what is new is copied once more."""
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join(2 * ANSWER_SECONDS)
        if last and not self._thread.is_alive():
            self._copy_safely()

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_SECONDS):
            self._copy_safely()

    def _copy_safely(self) -> None:
        try:
            self.copy()
        except (OSError, InfrastructureError) as error:
            log.warning("logs of other nodes cannot be copied: %s", error)

    def _sizes(self, source: LogSource) -> dict[str, int]:
        folder = self._folder / "logs" / source.folder
        return {path.name: path.stat().st_size for path in folder.glob("*.jsonl")} if folder.exists() else {}

    def _append(self, source: LogSource, answer: Answer) -> None:
        folder = self._folder / "logs" / source.folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in answer.items():
            if (match := LOG_NAME.fullmatch(name)) is None or "/" in name:
                continue
            with (folder / name).open("ab") as stream:
                stream.write(data)
            part = int(match["part"] or 1)
            if part > PARTS:
                old = log_file(self._folder, match["actor"], int(match["term"]), part - PARTS).name
                (folder / old).unlink(missing_ok=True)

    def _note(self, source: LogSource, lost: float | None) -> None:
        """Writes whether a node is gone, and until when its records were copied, if that has changed."""
        path = self._folder / "logs" / source.folder / NOTE
        note = {"node": source.name, LOST: None if lost is None else round(lost, 3)}
        if not path.exists() or json.loads(path.read_bytes())[LOST] != note[LOST]:
            path.parent.mkdir(parents=True, exist_ok=True)
            durable.write_json(path, note)


class RayNodes:
    """Asks nodes of the connected cluster.

    References are kept until a moment at which they can be deleted: not while the driver disconnects.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = str(run_folder)
        self._task: Any = ray.remote(num_cpus=0, max_retries=0)(new_bytes)
        self._asked: dict[Any, LogSource] = {}

    def __call__(self, sizes: Mapping[LogSource, Sizes]) -> dict[LogSource, Answer]:
        """Returns the answers that come in time."""
        found: dict[LogSource, Answer] = {}
        try:
            with calling_ray():
                self._asked = {
                    self._task.options(scheduling_strategy=on_node(source.node)).remote(self._folder, dict(own)): source
                    for source, own in sizes.items()
                }
            for reference in self._answered(list(self._asked)):
                try:
                    with calling_ray():
                        found[self._asked[reference]] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    log.info("node %s does not send its logs: %s", self._asked[reference].name, error)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise InfrastructureError(f"the cluster does not answer: {error}") from error
        return found

    def _answered(self, asked: list[Any]) -> list[Any]:
        """Returns the references whose answers come in time. A disconnect waits for `WAIT_SECONDS` at most."""
        answered = list[Any]()
        deadline = time.monotonic() + ANSWER_SECONDS
        while asked and time.monotonic() < deadline:
            with calling_ray():
                come, asked = ray.wait(asked, num_returns=len(asked), timeout=WAIT_SECONDS)
            answered += come
        return answered
