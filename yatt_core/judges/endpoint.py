"""A third-party judge behind OpenAI-compatible `chat/completions` endpoints.

Consumes items. Produces a verdict as soon as all judgements of an item are complete. Each judgement is one
request, with as many in parallel as the part allows; each is retried with exponential backoff as long as a
retry may help. A request that still fails while others are answered has failed: its item gets no judgement. While none is
answered at any endpoint, the judge is away, and no item gets anything. One that is refused for its text has failed, too; if
the endpoint refuses the part's settings, the part is wrong. A request that has to wait for a limit has not failed.
Messages contain neither keys nor the bodies of error responses, which may repeat what was sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from yatt_core.availability import Attempts, Availability, Step
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, DataError, InfrastructureError
from yatt_core.judges.completion import ChatCompletion, question, shortest_question, smallest_question
from yatt_core.judges.effort import JudgementMeter, effort_of
from yatt_core.judges.failover import Endpoints, RequestRefusedError, Trouble
from yatt_core.judges.open_questions import OpenQuestions
from yatt_core.judges.parsing import answer_parser
from yatt_core.judges.retrying import wait_before
from yatt_core.progress import advanced
from yatt_core.protocols.judges import NO_ERROR, JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.secret_references import BlockReader
from yatt_core.spec.rewards.judges import EndpointPart

LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts at a request that has used up its retries, until it is known what its failure means."""

LONGEST_LOOK_SECONDS = 20.0
"""How long a request waits for a limit that is to show whether a judge that was away answers again."""


@dataclass(frozen=True, slots=True)
class EndpointsAsked:
    """What came of one request to each endpoint of a part.

    verdict, url: those of the first endpoint that gave an answer.
    silent: the others that gave none, each with its address and the reason.
    """

    verdict: Verdict
    url: str
    silent: tuple[str, ...] = ()


class EndpointJudge:
    """Asks the endpoints of a part.

    read_block: reads a Prefect block, for a key that is in one.
    folder: where all processes of the home keep the endpoints' limits and circuits; None: this process keeps its own.

    Raises `ConfigurationError` if a key or the environment's proxies cannot be used.
    """

    def __init__(self, part: EndpointPart, read_block: BlockReader | None = None, folder: Path | None = None) -> None:
        self._part = part
        self._parse = answer_parser(part)
        self._urls = ", ".join(endpoint.url for endpoint in part.endpoints)
        self._name = f"judge {part.name!r}"
        self._place = f"rewards.parts {part.name!r}: {self._urls}"
        self._endpoints = Endpoints(part, read_block, folder)
        self._availability = Availability()
        self._open: OpenQuestions[_Asked] = OpenQuestions()
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Capabilities by name."""
        return {"deterministic": self._part.seeded, "batch_invariant": self._part.seeded}

    def sleep(self) -> None:
        """Does nothing: an endpoint uses no memory here."""

    def wake(self) -> None:
        """Does nothing: it never sleeps."""

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Yields verdicts in order of completion.

        Raises `ConfigurationError` for a 4xx response that a retry cannot change, and `AwayError` if no endpoint answers
        any request.
        """
        stop = threading.Event()
        with ThreadPoolExecutor(self._part.max_concurrent_requests, thread_name_prefix="judge") as pool:
            asked = [[pool.submit(self._ask, item, seed, stop) for seed in item.seeds] for item in request.items]
            places = {future: place for place, futures in enumerate(asked) for future in futures}
            missing = [len(futures) for futures in asked]
            try:
                for future in as_completed(places):
                    if (error := future.exception()) is not None:
                        raise error
                    missing[place := places[future]] -= 1
                    yield () if missing[place] else (self._verdict(request.items[place].number, asked[place]),)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def is_named(self, dependency: str) -> bool:
        """Returns whether what an `AwayError` names is this judge."""
        return dependency.startswith(self._name)

    def answers(self) -> bool:
        """Returns whether an endpoint answers a request for next to nothing, and need not be waited for much longer."""
        stop = threading.Event()
        timer = threading.Timer(LONGEST_LOOK_SECONDS, stop.set)
        timer.daemon = True
        timer.start()
        try:
            return self._see(stop)
        except InfrastructureError:  # its limit would have had to be waited for
            return False
        finally:
            timer.cancel()

    def ask_once(self, item: JudgeItem) -> EndpointsAsked:
        """Returns what comes of one request to each endpoint, for a check.

        Raises `InfrastructureError` if none gives an answer, and `ConfigurationError` if one refuses the part's settings.
        """
        try:
            body = question(self._part, item, item.seeds[0])
        except DataError as error:
            return EndpointsAsked(Verdict(item.number, (), f"data: {error}"), self._part.url)
        found = {each.url: self._checked(place, body, item) for place, each in enumerate(self._part.endpoints)}
        silent = tuple(f"{url}: {each.reason}" for url, each in found.items() if isinstance(each, Trouble))
        for url, each in found.items():
            if isinstance(each, Verdict):
                return EndpointsAsked(each, url, silent)
        raise InfrastructureError(f"rewards.parts {self._part.name!r}: {'; '.join(silent)}")

    def _checked(self, place: int, body: Mapping[str, object], item: JudgeItem) -> Verdict | Trouble:
        """Returns the verdict of one endpoint, or why there is none."""
        try:
            answer = self._endpoints.ask(place, body, JudgementMeter())
        except DataError as error:
            return Verdict(item.number, (), f"data: {error}")
        return answer if isinstance(answer, Trouble) else Verdict(item.number, (self._judgement(answer, item),))

    def _ask(self, item: JudgeItem, seed: int, stop: threading.Event) -> _Asked:
        """Asks for one judgement, unless it is being asked for already. stop: set when the result is no longer needed."""
        # The seed tells apart judgements whose questions are the same, of endpoints that take no seed.
        key = seed, replace(item, number=0, seeds=())
        return self._open.ask(key, lambda: self._ask_alone(item, seed, stop), stop)

    def _ask_alone(self, item: JudgeItem, seed: int, stop: threading.Event) -> _Asked:
        meter = JudgementMeter()
        judgement = None
        error = NO_ERROR
        try:
            judgement = self._judgement(self._answer(question(self._part, item, seed), stop, meter), item)
        except DataError as failure:
            error = f"data: {failure}"
        except RequestFailedError as failure:
            error = f"infrastructure: {failure}"
        meter.stop()
        return _Asked(meter, judgement, error)

    def _answer(self, body: Mapping[str, object], stop: threading.Event, meter: JudgementMeter) -> ChatCompletion:
        """Returns the answer to a question, after as many attempts as necessary and allowed.

        Raises `RequestFailedError` if others are answered and this one is not, `AwayError` if none is, and `DataError` if
        this one is refused for its text.
        """
        attempts = Attempts(self._part.retries, since=time.monotonic())
        limited_since: float | None = None
        failures = 0
        pauses_for_limits = 0
        while True:
            began = time.monotonic()
            answer = self._sent(body, stop, meter)
            if isinstance(answer, ChatCompletion):
                self._note_answer(meter.sent)
                advanced()
                return answer
            reason = answer.reason
            if answer.too_long:
                raise self._away(reason)
            if answer.is_limited:
                limited_since = self._since(limited_since, began, reason)
                pauses_for_limits += 1
                pause = wait_before(self._part, pauses_for_limits - 1)
            else:
                self._note_failure()
                failures += 1
                if failures > self._part.retries:
                    reason = f"{reason}, {failures} times in a row"
                step = self._after_failure(attempts, stop)
                if step == "failed":
                    raise RequestFailedError(f"{self._place}: {reason}")
                if step == "away":
                    raise self._away(reason)
                if step == "again":
                    continue
                pause = self._pause(attempts.pauses)
            if stop.wait(pause):
                raise InfrastructureError(f"{self._place}: {reason}; its answer is no longer needed")

    def _sent(
        self, body: Mapping[str, object], stop: threading.Event, meter: JudgementMeter
    ) -> ChatCompletion | Trouble:
        """Returns what one attempt at a question gives.

        Raises `DataError` if the question is refused although one with the same settings and next to no text is answered, and
        `ConfigurationError` if that is refused too: no question would be answered.
        """
        try:
            return self._endpoints.send(body, stop, meter)
        except RequestRefusedError as refusal:
            try:
                answer = self._endpoints.ask(refusal.place, shortest_question(body), JudgementMeter())
            except DataError:  # its answer has no text, but its settings are accepted
                pass
            else:
                if isinstance(answer, Trouble):  # nothing is known yet: the question is asked again later
                    return answer
            raise DataError(
                f"{refusal.where}: rejected with status {refusal.status}, unlike a short question with the same settings: it "
                "may be too long for the judge, or withheld by a filter"
            ) from None

    def _since(self, limited: float | None, began: float, reason: str) -> float:
        """Returns since when a request has been told to wait, while no other was answered.

        limited: the same before the newest attempt; None if it had not been told to wait.
        began: when the newest attempt began.

        Raises `AwayError` if that is longer than a request may wait.
        """
        if limited is None:
            return began
        with self._lock:
            others_answered = self._availability.answers_what_was_sent_after(limited)
        if others_answered:
            return began
        if began - limited > self._part.longest_wait_seconds:
            raise self._away(f"{reason} for {began - limited:.0f} s")
        return limited

    def _after_failure(self, attempts: Attempts, stop: threading.Event) -> Step:
        """Returns what follows a failed attempt; asks for next to nothing if that decides it."""
        with self._lock:
            step = attempts.after_failure(self._availability, time.monotonic(), can_see=True)
        if step != "see":
            return step
        self._see(stop)
        with self._lock:
            return attempts.after_failure(self._availability, time.monotonic(), can_see=False)

    def _pause(self, pauses: int) -> float:
        """Returns the seconds before an attempt. pauses: the number of this pause, from 1."""
        wait = wait_before(self._part, min(pauses - 1, self._part.retries))
        return wait if pauses <= self._part.retries else min(wait, LONGEST_PAUSE_SECONDS)

    def _see(self, stop: threading.Event) -> bool:
        """Asks for next to nothing: a request may fail for what is in it, while no other is on its way.

        Returns whether that was answered.
        """
        meter = JudgementMeter()
        try:
            answer = self._endpoints.send(smallest_question(self._part), stop, meter)
        except (ConfigurationError, DataError):  # it refuses the question, so it is there
            self._note_answer(meter.sent)
            return True
        if isinstance(answer, ChatCompletion):
            self._note_answer(meter.sent)
            return True
        if not answer.is_limited:
            self._note_failure()
        return False

    def _away(self, reason: str) -> AwayError:
        return AwayError(f"{self._name} at {self._urls}{IS_AWAY}{reason}")

    def _note_answer(self, sent: float) -> None:
        with self._lock:
            self._availability.answered(time.monotonic(), sent)

    def _note_failure(self) -> None:
        with self._lock:
            self._availability.failed()

    def _judgement(self, answer: ChatCompletion, item: JudgeItem) -> Judgement:
        return Judgement(
            answer=answer.text,
            score=self._parse(answer.text, len(item.steps), answer.cut),
            tokens=answer.tokens,
            prompt_tokens=answer.prompt_tokens,
            cut=answer.cut,
        )

    def _verdict(self, number: int, futures: Sequence[Future[_Asked]]) -> Verdict:
        """Returns the verdict on an item whose judgements are complete or have failed.

        If several have failed, the verdict gives the reason of the first.
        """
        asked = [future.result() for future in futures]
        error = next((each.error for each in asked if each.error), NO_ERROR)
        judgements = tuple(each.judgement for each in asked if each.judgement is not None)
        effort = effort_of((each.meter for each in asked), self._part.prices)
        return Verdict(number, () if error else judgements, error, effort)


class RequestFailedError(Exception):
    """A request that no endpoint answers although others are answered; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking for one judgement: a judgement, or why there is none."""

    meter: JudgementMeter
    judgement: Judgement | None
    error: str
