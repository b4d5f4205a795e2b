"""Questions that are being asked: who asks the same one meanwhile waits for its answer, and sends nothing.

A batch that a lost controller had sent goes on, and may be waiting for its next attempt when the controller that takes over
the shard sends the same questions. Consumes keys of questions, and functions that ask them; produces what they return or raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from yatt_core.errors import InfrastructureError

Answer = TypeVar("Answer")
LOOK_SECONDS = 0.1
"""Between two looks of who waits at whether the answer is still needed."""


class _GivenUpError(Exception):
    """Who asked needs the answer no longer."""


class OpenQuestions(Generic[Answer]):
    """The questions that are being asked. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, Future[Answer]] = {}

    def ask(self, key: Hashable, asked: Callable[[], Answer], stop: threading.Event) -> Answer:
        """Returns the answer to a question, and raises what asking it raises, whoever asks it.

        stop: set when the answer is no longer needed here; if it is where the question is being asked, it is asked here.

        Raises `InfrastructureError` if the answer is no longer needed.
        """
        while not stop.is_set():
            own: Future[Answer] = Future()
            with self._lock:
                question = self._open.setdefault(key, own)
            if question is own:
                return self._asked(key, own, asked, stop)
            wait([question], LOOK_SECONDS)
            if question.done() and not isinstance(question.exception(), _GivenUpError):
                return question.result()
        raise InfrastructureError("an answer is no longer needed")

    def _asked(self, key: Hashable, own: Future[Answer], asked: Callable[[], Answer], stop: threading.Event) -> Answer:
        try:
            answer = asked()
            own.set_result(answer)
            return answer
        except BaseException as error:
            own.set_exception(_GivenUpError() if stop.is_set() else error)
            raise
        finally:
            # Only now, so that nobody asks again while the answer is there and not told yet.
            with self._lock:
                del self._open[key]
