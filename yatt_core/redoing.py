"""Asks again what failed because a service did not answer, and decides what a failure means that lasts.

Consumes questions by number, and a function that asks some of them. Produces answers; questions that others were answered
beside have failed, and if none is answered, the service is away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from yatt_core.availability import Attempts, Availability
from yatt_core.errors import IS_AWAY, AwayError

Answer = TypeVar("Answer")
RETRIES = 4
FIRST_SECONDS = 1.0
"""Before the first retry; doubled before each further one."""
LONGEST_SECONDS = 5.0


def pause_seconds(pauses: int) -> float:
    """Returns the length of a pause before a retry. pauses: number of pauses so far, this one included."""
    return min(FIRST_SECONDS * 2.0 ** (pauses - 1), LONGEST_SECONDS)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What stands in place of an answer if a service did not give it."""

    reason: str


@dataclass(slots=True)
class Service(Generic[Answer]):
    """A service that an author's code asks, as far as can be seen from here.

    name: for messages.
    sleep, now: the clock.
    """

    name: str
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    _availability: Availability = field(default_factory=Availability)
    _unanswered: Callable[[], bool] | None = None

    def ask(
        self,
        numbers: Collection[int],
        asked: Callable[[Collection[int]], Mapping[int, Answer | Unanswered]],
        repeatable: bool = False,
        witness: int | None = None,
        is_told: Callable[[Answer], bool] = lambda answer: True,
    ) -> Iterator[tuple[int, Answer | Unanswered]]:
        """Yields the answers to questions by number; `Unanswered` for those that failed although others were answered.

        asked: asks some of the questions once; it may leave out what need not be asked any more.
        repeatable: whether a question that has been answered may be asked again, to see whether the service answers at all.
        witness: the number of a question that may be asked for that, though its answer is not wanted.
        is_told: whether an answer is the service's own, rather than found without asking it, which says nothing of the service.

        Raises `AwayError` if nothing is answered for a while.
        """
        pending = list(numbers)
        attempts = Attempts(RETRIES, since=self.now())
        while pending:
            sent = self.now()
            found = asked(pending)
            failed: dict[int, Unanswered] = {}
            for number, answer in found.items():
                if isinstance(answer, Unanswered):
                    failed[number] = answer
                    self.note_failure()
                else:
                    if is_told(answer):
                        self.note_answer(sent)
                        witness = number if repeatable else witness
                    yield number, answer
            pending = sorted(failed)
            if not pending:
                return
            step = attempts.after_failure(self._availability, self.now(), can_see=witness is not None)
            if step == "see" and witness is not None:
                self._see(witness, asked)
                step = attempts.after_failure(self._availability, self.now(), can_see=False)
            if step == "failed":
                yield from failed.items()
                return
            if step == "away":
                self._unanswered = partial(self._is_answered, asked, pending[0] if witness is None else witness)
                raise AwayError(f"{self.name}{IS_AWAY}{failed[pending[0]].reason}")
            if step == "wait":
                self.sleep(pause_seconds(attempts.pauses))

    def _see(self, witness: int, asked: Callable[[Collection[int]], Mapping[int, Answer | Unanswered]]) -> None:
        """Asks a question again that was answered before."""
        sent = self.now()
        if isinstance(asked([witness]).get(witness), Unanswered):
            self.note_failure()
        else:
            self.note_answer(sent)

    def _is_answered(self, asked: Callable[[Collection[int]], Mapping[int, Answer | Unanswered]], number: int) -> bool:
        return not isinstance(asked([number]).get(number), Unanswered)

    def answers(self) -> bool | None:
        """Asks again what got no answer when the service was found to be away; None if it was not."""
        return None if self._unanswered is None else self._unanswered()

    def note_answer(self, sent: float) -> None:
        """Notes a question that was answered now. sent: when it was asked."""
        self._availability.answered(self.now(), sent)

    def note_failure(self) -> None:
        """Notes a question that got no answer."""
        self._availability.failed()
