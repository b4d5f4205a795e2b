"""A third-party judge behind an OpenAI-compatible `chat/completions` endpoint.

Consumes items. Produces a verdict as soon as all judgements of an item are complete. Each judgement is one
request, with as many in parallel as the part allows; each is retried with exponential backoff as long as a
retry may help. A request that still fails while others are answered has failed: its item gets no judgement. While none is
answered, the endpoint is away, and no item gets anything. Messages contain neither keys nor the bodies of error
responses, which may repeat what was sent.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import UTC, datetime

import httpx

from yatt_core.availability import Attempts, Availability, Step
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, DataError, InfrastructureError
from yatt_core.judges.api_keys import key_of
from yatt_core.judges.completion import Completion, MalformedError, completion_of, question
from yatt_core.judges.exchange import Exchange
from yatt_core.judges.parsing import answer_parser
from yatt_core.judges.retrying import asked_seconds, meaning_of, wait_before
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.secret_references import BlockReader
from yatt_core.spec.rewards.judges import LOOPBACK, EndpointPart

LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts at a request that has used up its retries, until it is known what its failure means."""


class EndpointJudge:
    """Sends requests to one endpoint.

    read_block: reads a Prefect block, for a key that is in one.

    Raises `ConfigurationError` if its key or the environment's proxies cannot be used.
    """

    def __init__(self, part: EndpointPart, read_block: BlockReader | None = None) -> None:
        self._part, self._parse = part, answer_parser(part)
        self._place = f"rewards.parts {part.name!r}: {part.url}"
        self._exchange = Exchange(_client_of(part, read_block), part.timeout_seconds)
        self._availability = Availability()
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

        Raises `ConfigurationError` for a 4xx response that a retry cannot change, and `AwayError` if the endpoint answers
        no request.
        """
        stop = threading.Event()
        with ThreadPoolExecutor(self._part.max_concurrent_requests, thread_name_prefix="judge") as pool:
            asked = [[pool.submit(self._ask, item, seed, stop) for seed in item.seeds] for item in request.items]
            places = {future: place for place, futures in enumerate(asked) for future in futures}
            missing = [len(futures) for futures in asked]
            try:
                for future in as_completed(places):
                    if (error := future.exception()) is not None and not isinstance(
                        error, DataError | RequestFailedError
                    ):
                        raise error
                    missing[place := places[future]] -= 1
                    yield () if missing[place] else (_verdict(request.items[place].number, asked[place]),)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _ask(self, item: JudgeItem, seed: int, stop: threading.Event) -> Judgement:
        """Returns one judgement, after as many attempts as necessary and allowed.

        stop: set when the result is no longer needed.
        """
        body = question(self._part, item, seed)
        attempts = Attempts(self._part.retries, since=time.monotonic())
        for number in itertools.count(1):
            sent = time.monotonic()
            answer = self._attempt(body)
            if isinstance(answer, Completion):
                self._note_answer(sent)
                return self._judgement(answer, item)
            self._note_failure()
            reason, asked = answer
            if asked is not None and asked > self._part.longest_wait_seconds:
                raise self._away(f"{reason}; it asks to wait for {asked:g} s")
            step = self._after_failure(attempts)
            if number > self._part.retries:
                reason = f"{reason}, {number} times in a row"
            if step == "failed":
                raise RequestFailedError(f"{self._place}: {reason}")
            if step == "away":
                raise self._away(reason)
            if step == "wait" and stop.wait(self._pause(attempts.pauses, asked)):
                raise InfrastructureError(f"{self._place}: {reason}; its answer is no longer needed")
        raise AssertionError("the loop has no end")

    def _after_failure(self, attempts: Attempts) -> Step:
        """Returns what follows a failed attempt; asks for next to nothing if that decides it."""
        with self._lock:
            step = attempts.after_failure(self._availability, time.monotonic(), can_see=True)
        if step != "see":
            return step
        self._see()
        with self._lock:
            return attempts.after_failure(self._availability, time.monotonic(), can_see=False)

    def _pause(self, pauses: int, asked: float | None) -> float:
        """Returns the seconds before an attempt. pauses: the number of this pause, from 1."""
        wait = wait_before(self._part, min(pauses - 1, self._part.retries), asked)
        return wait if pauses <= self._part.retries else min(wait, LONGEST_PAUSE_SECONDS)

    def _judgement(self, answer: Completion, item: JudgeItem) -> Judgement:
        return Judgement(
            answer=answer.text,
            score=self._parse(answer.text, len(item.steps), answer.cut),
            tokens=answer.tokens,
            prompt_tokens=answer.prompt_tokens,
            cut=answer.cut,
        )

    def ask_once(self, item: JudgeItem) -> Verdict:
        """Returns the verdict of one request, for a check. Raises `InfrastructureError` if it gets no answer."""
        try:
            answer = self._attempt(question(self._part, item, item.seeds[0]))
        except DataError as error:
            return Verdict(item.number, (), f"data: {error}")
        if not isinstance(answer, Completion):
            raise InfrastructureError(f"{self._place}: {answer[0]}, 1 times in a row")
        return Verdict(item.number, (self._judgement(answer, item),))

    def _see(self) -> None:
        """Asks for next to nothing: a request may fail for what is in it, while no other is on its way."""
        body = {"model": self._part.model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
        sent = time.monotonic()
        try:
            answers = isinstance(self._attempt(body), Completion)
        except (ConfigurationError, DataError):  # it refuses the question, so it is there
            answers = True
        if answers:
            self._note_answer(sent)
        else:
            self._note_failure()

    def _away(self, reason: str) -> AwayError:
        return AwayError(f"judge {self._part.name!r} at {self._part.url}{IS_AWAY}{reason}")

    def _note_answer(self, sent: float) -> None:
        with self._lock:
            self._availability.answered(time.monotonic(), sent)

    def _note_failure(self) -> None:
        with self._lock:
            self._availability.failed()

    def _attempt(self, body: Mapping[str, object]) -> Completion | tuple[str, float | None]:
        """Returns a completion, or the reason why there is none yet and the wait that the endpoint asks for."""
        try:
            answer = self._exchange.post(f"{self._part.url}/chat/completions", body)
            meaning = meaning_of(answer.status)
            if meaning == "fine":
                return completion_of(answer.body)
        except TimeoutError:
            return f"no response within {self._part.timeout_seconds:g} s", None
        except httpx.DecodingError:
            return "a response that does not match its Content-Encoding", None
        except httpx.HTTPError as error:
            return f"cannot be reached ({type(error).__name__})", None
        except MalformedError as error:
            return str(error), None
        if meaning == "refused":
            raise ConfigurationError(
                f"{self._place}: rejected with status {answer.status} {_hint(self._part, answer.status)}"
            )
        return f"status {answer.status}", asked_seconds(answer.retry_after, datetime.now(UTC))


class RequestFailedError(Exception):
    """A request that the endpoint does not answer although it answers others; the text is the reason."""


def _verdict(number: int, judgements: Sequence[Future[Judgement]]) -> Verdict:
    """Returns the verdict on an item whose judgements are complete or have failed.

    If several have failed, the verdict gives the reason of the first.
    """
    try:
        return Verdict(number, tuple(judgement.result() for judgement in judgements))
    except DataError as error:
        return Verdict(number, (), f"data: {error}")
    except RequestFailedError as error:
        return Verdict(number, (), f"infrastructure: {error}")


def _client_of(part: EndpointPart, read_block: BlockReader | None) -> httpx.AsyncClient:
    """Returns a client with the key and the environment's proxies and certificates; loopback bypasses proxies."""
    headers = _key_header(part, read_block)
    limits = httpx.Limits(
        max_connections=part.max_concurrent_requests, max_keepalive_connections=part.max_concurrent_requests
    )
    try:
        host = httpx.URL(part.url).host
    except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError for a name that only looks like Punycode
        raise ConfigurationError(f"rewards.parts {part.name!r}: url: {part.url} is not a valid URL: {error}") from None
    direct = f"all://[{host}]" if ":" in host else f"all://{host}"
    try:
        return httpx.AsyncClient(
            headers=headers,
            timeout=None,  # the exchange limits the total time
            limits=limits,
            follow_redirects=False,
            mounts={direct: None} if host in LOOPBACK else None,
        )
    except (httpx.InvalidURL, ValueError, ImportError, OSError) as error:
        # The text of the error may contain a proxy's password.
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: the environment's proxy or certificate settings cannot be used "
            f"({type(error).__name__}); check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


def _key_header(part: EndpointPart, read_block: BlockReader | None) -> dict[str, str]:
    key = key_of(part, read_block)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _hint(part: EndpointPart, status: int) -> str:
    """Returns what to check after a rejected request."""
    if status in (401, 403):
        named = f"the key in {part.credential}" if part.credential else "whether it needs a key (credential)"
        return f"(not authorised); check {named}"
    if status == 404:
        return f"(not found); check url and model {part.model!r}"
    if 300 <= status < 400:
        return "(moved); redirects are not followed; set url to the new address"
    return f"; check url, model {part.model!r} and what the endpoint supports (max_new_tokens, temperature, seeded)"
