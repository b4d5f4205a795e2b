"""A driver's signs of life for the run's actors: its term, a beat that changes, and its requests for stacks.

Each driver writes only the key of its own term, so a driver that was suspended and continues never hides its
successor. Actors take the highest term and time the changes of its beat with their own clock. Consumes the run's
control store; the supervisor, on the driver's host, is told by a file instead (`supervisor/client.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from yatt_core.cluster.control_store import ControlStore, RayControlStore
from yatt_core.errors import FencedError, InfrastructureError

SIGNS = "driver."
ANSWERS = "stacks."
"""Beginnings of the keys that drivers write, and of those with which actors answer."""
_TERM = f"{SIGNS}term."
_REQUEST = f"{SIGNS}request."
_DIGITS = 12
BEAT_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signs:
    """What the drivers of a run have left.

    term: the highest one; -1 if there is none.
    beat: what the driver of that term last wrote.
    requests: names of requests for stacks.
    """

    term: int
    beat: str
    requests: frozenset[str]


def read_signs(store: ControlStore) -> Signs:
    """Returns the drivers' signs. Raises `InfrastructureError` if the store does not answer."""
    keys = store.keys(SIGNS)
    term = _newest(keys)
    requests = frozenset(key.removeprefix(_REQUEST) for key in keys if key.startswith(_REQUEST))
    return Signs(term, (store.get(_key(term)) or "") if term >= 0 else "", requests)


def newest_term(store: ControlStore) -> int:
    """Returns the highest term that a driver has announced; -1 if there is none."""
    return _newest(store.keys(_TERM))


def announce(store: ControlStore, term: int) -> None:
    """Announces a driver. Raises `FencedError` if a later one has done so."""
    store.put(_key(term), "0")
    require_newest(store, term)


def require_newest(store: ControlStore, term: int) -> None:
    """Raises `FencedError` if a driver of a later term has been announced."""
    if (newest := newest_term(store)) > term:
        raise FencedError(f"term {term} was replaced by {newest}")


def forget_drivers(store: ControlStore) -> None:
    """Deletes all signs and answers, once the run has no actors any more."""
    store.delete(SIGNS)
    store.delete(ANSWERS)


def put_request(store: ControlStore, name: str) -> None:
    """Asks all actors for their stacks."""
    store.put(f"{_REQUEST}{name}", "")


def put_answer(store: ControlStore, request: str, actor: str, answer: str) -> None:
    """Leaves an actor's answer to a request."""
    store.put(f"{ANSWERS}{request}.{actor}", answer)


def take_answers(store: ControlStore, request: str, known: frozenset[str]) -> dict[str, str]:
    """Returns the answers to a request by actor, except those of known actors."""
    prefix = f"{ANSWERS}{request}."
    actors = [key.removeprefix(prefix) for key in store.keys(prefix)]
    found = {actor: store.get(f"{prefix}{actor}") for actor in actors if actor not in known}
    return {actor: answer for actor, answer in found.items() if answer is not None}


def end_request(store: ControlStore, name: str) -> None:
    """Deletes a request and its answers."""
    store.delete(f"{_REQUEST}{name}")
    store.delete(f"{ANSWERS}{name}.")


def _key(term: int) -> str:
    return f"{_TERM}{term:0{_DIGITS}d}"


def _newest(keys: list[str]) -> int:
    return max((int(key.removeprefix(_TERM)) for key in keys if key.startswith(_TERM)), default=-1)


class Silence:
    """Measures how long no sign of a driver has changed, on this process's monotonic clock."""

    def __init__(self) -> None:
        self._seen: tuple[int, str] = (-1, "")
        self._changed_at = time.monotonic()

    def hear(self, signs: Signs) -> None:
        """Notes what the drivers have left."""
        if (heard := (signs.term, signs.beat)) != self._seen:
            self._seen = heard
            self._changed_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last change that was heard; before the first one, since the start."""
        return time.monotonic() - self._changed_at


class DriverBeat:
    """A thread that changes the beat of a driver's term every `interval` seconds; a context manager.

    It begins once the process is connected to Ray. A beat that fails is repeated at the next one.
    """

    def __init__(self, term: int, interval: float = BEAT_SECONDS, store: ControlStore | None = None) -> None:
        self._key = _key(term)
        self._interval = interval
        self._store = store or RayControlStore(BEAT_SECONDS)
        self._stopped = threading.Event()
        self._count = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="driver-beat", daemon=True)

    def __enter__(self) -> DriverBeat:
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        with suppress(InfrastructureError):  # with the head, all signs are gone
            self._store.delete(self._key)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._beat()

    def _beat(self) -> None:
        self._count += 1
        try:
            self._store.put(self._key, str(self._count))
            self._failing = False
        except InfrastructureError as error:
            if self._count > 1 and not self._failing:
                log.info("the actors were not told that the driver is alive: %s", error)
            self._failing = True
