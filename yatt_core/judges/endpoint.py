"""A judge of others, behind an OpenAI-compatible `chat/completions`.

Consumes items; produces verdicts as all judgements of an item are there. One request a judgement, as many at once as the part
allows; each is tried again with exponential backoff while trying may help. Keys come from the environment. No message has
them, nor the body of a refusal, which may repeat what was sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import UTC, datetime

import httpx

from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.judges.api_keys import key_of
from yatt_core.judges.completion import Completion, MalformedError, completion_of, question
from yatt_core.judges.exchange import Exchange
from yatt_core.judges.parsing import parser_of
from yatt_core.judges.retrying import asked_seconds, meaning_of, wait_before
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.spec.rewards.judges import LOOPBACK, EndpointPart


class EndpointJudge:
    """Asks one endpoint. Raises `ConfigurationError` where its key, or the environment's proxies, cannot be used."""

    def __init__(self, part: EndpointPart) -> None:
        self._part, self._parse = part, parser_of(part.parse)
        self._place = f"rewards.parts {part.name!r}: {part.url}"
        self._exchange = Exchange(_client_of(part), part.timeout_seconds)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """What it can do, by name."""
        return {"deterministic": self._part.seeded, "batch_invariant": self._part.seeded}

    def sleep(self) -> None:
        """Its memory is not ours."""

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Verdicts in the order in which they are complete.

        Raises `ConfigurationError` for an answer of 4xx that stays one, `InfrastructureError` once all attempts are used up.
        """
        stop = threading.Event()
        with ThreadPoolExecutor(self._part.max_concurrent_requests, thread_name_prefix="judge") as pool:
            asked = [[pool.submit(self._ask, item, seed, stop) for seed in item.seeds] for item in request.items]
            places = {future: place for place, futures in enumerate(asked) for future in futures}
            missing = [len(futures) for futures in asked]
            try:
                for future in as_completed(places):
                    if (error := future.exception()) is not None and not isinstance(error, DataError):
                        raise error
                    missing[place := places[future]] -= 1
                    yield () if missing[place] else (_verdict(request.items[place].number, asked[place]),)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _ask(self, item: JudgeItem, seed: int, stop: threading.Event) -> Judgement:
        """One judgement, after as many attempts as it takes and the part allows. stop: nobody waits for it any more."""
        body = question(self._part, item, seed)
        for attempt in range(self._part.retries + 1):
            answer = self._attempt(body)
            if isinstance(answer, Completion):
                return Judgement(answer.text, self._parse(answer.text), answer.tokens, answer.prompt_tokens)
            reason, asked = answer
            if asked is not None and asked > self._part.longest_wait_seconds:
                raise InfrastructureError(f"{self._place}: {reason}; it wants to be left alone for {asked:g} s")
            if attempt < self._part.retries and stop.wait(wait_before(self._part, attempt, asked)):
                break
        raise InfrastructureError(f"{self._place}: {reason}, {attempt + 1} times in a row")

    def _attempt(self, body: Mapping[str, object]) -> Completion | tuple[str, float | None]:
        """A completion; or why there is none yet, and how long the endpoint asks to wait."""
        try:
            answer = self._exchange.post(f"{self._part.url}/chat/completions", body)
            meaning = meaning_of(answer.status)
            if meaning == "fine":
                return completion_of(answer.body)
        except TimeoutError:
            return f"no answer within {self._part.timeout_seconds:g} s", None
        except httpx.DecodingError:
            return "an answer that its Content-Encoding does not decode", None
        except httpx.HTTPError as error:
            return f"cannot be reached ({type(error).__name__})", None
        except MalformedError as error:
            return str(error), None
        if meaning == "refused":
            raise ConfigurationError(f"{self._place}: refused with {answer.status} {_hint(self._part, answer.status)}")
        return f"answered {answer.status}", asked_seconds(answer.retry_after, datetime.now(UTC))


def _verdict(number: int, judgements: Sequence[Future[Judgement]]) -> Verdict:
    """On an item whose judgements have all come, or cannot; of several reasons the first judgement's is told."""
    try:
        return Verdict(number, tuple(judgement.result() for judgement in judgements))
    except DataError as error:
        return Verdict(number, (), f"data: {error}")


def _client_of(part: EndpointPart) -> httpx.AsyncClient:
    """With the key, and the environment's proxies and certificates. What stays on this machine goes through no proxy."""
    headers = _key_header(part)
    limits = httpx.Limits(
        max_connections=part.max_concurrent_requests, max_keepalive_connections=part.max_concurrent_requests
    )
    try:
        host = httpx.URL(part.url).host
    except (httpx.InvalidURL, UnicodeError) as error:  # the latter for a name that only looks like Punycode
        raise ConfigurationError(f"rewards.parts {part.name!r}: url: {part.url} is no address: {error}") from None
    direct = f"all://[{host}]" if ":" in host else f"all://{host}"
    try:
        return httpx.AsyncClient(
            headers=headers,
            timeout=None,  # the exchange has the time for all of it
            limits=limits,
            follow_redirects=False,
            mounts={direct: None} if host in LOOPBACK else None,
        )
    except (httpx.InvalidURL, ValueError, ImportError, OSError) as error:
        # Its text may hold a proxy's password.
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: what the environment says of proxies and certificates cannot be used "
            f"({type(error).__name__}); look at HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


def _key_header(part: EndpointPart) -> dict[str, str]:
    key = key_of(part)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _hint(part: EndpointPart, status: int) -> str:
    """What to look at after a refusal."""
    if status in (401, 403):
        named = f"the key in {part.api_key_env}" if part.api_key_env else "whether it needs a key (api_key_env)"
        return f"(not authorised); check {named}"
    if status == 404:
        return f"(not found); check url and model {part.model!r}"
    if 300 <= status < 400:
        return "(moved); redirects are not followed, write the address that it moved to"
    return f"; check url, model {part.model!r} and what the endpoint takes (max_new_tokens, temperature, seeded)"
