"""Sends a request to one of a judge's endpoints, and to another if that one fails.

Consumes request bodies. Produces completions, or why there is none. It obeys the endpoints' limits and their wishes to be left
alone, for all requests of the home; what waits for these waits once, for as long as it has to. An endpoint whose circuit is
open is passed over while another is there; after a pause, one request sees whether it is back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.judges.api_keys import key_of
from yatt_core.judges.completion import (
    ChatCompletion,
    MalformedError,
    completion_of,
    estimated_tokens,
    refused_field,
)
from yatt_core.judges.effort import JudgementMeter
from yatt_core.judges.exchange import EndpointResponse, Exchange
from yatt_core.judges.limits import EndpointState, RateLimits
from yatt_core.judges.retrying import LIMITED, OF_CONTENTS, asked_seconds, meaning_of
from yatt_core.judges.shared_state import SharedState, state_file
from yatt_core.progress import advanced
from yatt_core.secret_references import BlockReader
from yatt_core.spec.rewards.addresses import LOOPBACK, FallbackEndpoint
from yatt_core.spec.rewards.judges import EndpointPart

SIGN_SECONDS = 10.0
"""Between two signs of progress of a request that waits for a limit."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no completion yet.

    is_limited: whether an endpoint only asks to wait, which is no failure.
    too_long: whether every endpoint asks for a longer wait than the part allows.
    """

    reason: str
    is_limited: bool = False
    too_long: bool = False


class RequestRefusedError(ConfigurationError):
    """A refusal that may be about the part's settings, or about the text of this one request.

    place: number of the endpoint that refuses it.
    where: the part and the endpoint's address.
    status: of the response.
    """

    def __init__(self, place: int, where: str, status: int, hint: str) -> None:
        super().__init__(place, where, status, hint)  # all of them: an error is sent from the actor to the driver
        self.place = place
        self.where = where
        self.status = status
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: rejected with status {self.status}{self.hint}"


@dataclass(frozen=True, slots=True)
class _Endpoint:
    url: str
    credential: str
    exchange: Exchange
    shared: SharedState


class Endpoints:
    """The endpoints of a part, in order of preference.

    read_block: reads a Prefect block, for a key that is in one.
    folder: where all processes of the home keep the endpoints' states; None: this process keeps them for itself.

    Raises `ConfigurationError` if a key or the environment's proxies cannot be used.
    """

    def __init__(self, part: EndpointPart, read_block: BlockReader | None, folder: Path | None) -> None:
        self._part = part
        self._rates = RateLimits(part.requests_per_minute, part.tokens_per_minute)
        self._each = [_opened(part, endpoint, read_block, folder) for endpoint in part.endpoints]

    def send(self, body: Mapping[str, Any], stop: threading.Event, meter: JudgementMeter) -> ChatCompletion | Trouble:
        """Returns a completion, or why no endpoint gave one; each is asked at most once.

        stop: set when the result is no longer needed.

        Raises `RequestRefusedError` for a response that may be about the text of this request, `ConfigurationError` for any
        other that a retry cannot change, and `DataError` for one without text.
        """
        tokens = estimated_tokens(body, self._part)
        troubles: dict[int, Trouble] = {}
        while (chosen := self._choose(tokens, troubles)) is not None:
            place, is_probe = chosen
            endpoint = self._each[place]
            if not self._wait(endpoint, tokens, stop, meter):
                continue
            answer = self.ask(place, body, meter, is_probe)
            if isinstance(answer, ChatCompletion):
                self._settle(endpoint, tokens, answer)
                return answer
            troubles[place] = answer
        return self._joined(troubles)

    def _choose(self, tokens: int, troubles: Mapping[int, Trouble]) -> tuple[int, bool] | None:
        """Returns the endpoint to ask next, and whether that is to see whether it is back; None if none is left."""
        now = time.time()
        states = {place: each.shared.seen() for place, each in enumerate(self._each) if place not in troubles}
        states = {place: state for place, state in states.items() if not self._holds(state, now)}
        for place, state in states.items():
            if state.may_probe(now) and self._each[place].shared.change(self._take_probe):
                return place, True
        if closed := [place for place, state in states.items() if not state.is_open]:
            return min(closed, key=lambda place: states[place].wait(self._rates, tokens, now)), False
        if states and not troubles:  # all circuits are open, so the judge may be away: that is to be found out
            return min(states, key=lambda place: states[place].probe_at), True
        return None

    def _holds(self, state: EndpointState, now: float) -> bool:
        """Returns whether an endpoint asks to be left alone for longer than a request waits."""
        return state.held_seconds(now) > self._part.longest_wait_seconds

    def _take_probe(self, state: EndpointState, now: float) -> bool:
        return state.take_probe(now, self._part.timeout_seconds)

    def _wait(self, endpoint: _Endpoint, tokens: int, stop: threading.Event, meter: JudgementMeter) -> bool:
        """Waits until the endpoint's limits allow a request; False if it asks to be left alone meanwhile.

        Raises `InfrastructureError` if the result is no longer needed.
        """
        if not self._rates.any and not endpoint.shared.seen().held_seconds(time.time()):
            return True

        def take(state: EndpointState, now: float) -> float | None:
            return None if self._holds(state, now) else state.take(self._rates, tokens, now)

        wait = endpoint.shared.change(take)
        if wait is None:
            return False
        if wait <= 0.0:
            return True
        meter.waited += wait
        if not self._sleep(endpoint, wait, stop):
            endpoint.shared.change(lambda state, _: state.give_back(self._rates, tokens))
            raise InfrastructureError(f"{self._place(endpoint)}: an answer that was waited for is no longer needed")
        if endpoint.shared.seen().held_seconds(time.time()) > 0.0:
            endpoint.shared.change(lambda state, _: state.give_back(self._rates, tokens))
            return False
        return True

    def _sleep(self, endpoint: _Endpoint, seconds: float, stop: threading.Event) -> bool:
        """Waits for a limit, and says so now and then: what waits for its turn is not stuck.

        Returns False if the result is no longer needed.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0:
            advanced(f"judge {self._part.name!r}: {left:.0f} s until the limit of {endpoint.url} allows a request")
            if stop.wait(min(left, SIGN_SECONDS)):
                return False
        return True

    def _settle(self, endpoint: _Endpoint, tokens: int, answer: ChatCompletion) -> None:
        """Replaces the estimated tokens of a request by those that the endpoint has counted, if it has."""
        counted = answer.tokens + answer.prompt_tokens
        if self._part.tokens_per_minute is not None and counted:
            endpoint.shared.change(lambda state, _: state.settle(self._rates, tokens, counted))

    def ask(
        self, place: int, body: Mapping[str, Any], meter: JudgementMeter, is_probe: bool = False
    ) -> ChatCompletion | Trouble:
        """Sends a request to one endpoint, whatever its limits, and notes what comes of it. Raises as `send` does."""
        endpoint = self._each[place]
        is_there = True
        try:
            answer = self._asked(place, body, meter)
            is_there = isinstance(answer, ChatCompletion) or answer.is_limited
        finally:
            if not is_there:
                chance = random.random()
                endpoint.shared.change(lambda state, now: state.note_failure(now, is_probe, chance))
            elif endpoint.shared.seen().failures:
                endpoint.shared.change(lambda state, _: state.note_answer())
        return answer

    def _asked(self, place: int, body: Mapping[str, Any], meter: JudgementMeter) -> ChatCompletion | Trouble:
        endpoint = self._each[place]
        sent = meter.sent = time.monotonic()
        try:
            answer = endpoint.exchange.post(f"{endpoint.url}/chat/completions", body)
            meaning = meaning_of(answer.status)
            completion = completion_of(answer.body) if meaning == "fine" else None
        except TimeoutError:
            meter.outcomes["timeout"] += 1
            return Trouble(f"no response within {self._part.timeout_seconds:g} s")
        except httpx.DecodingError:
            meter.outcomes["malformed"] += 1
            return Trouble("a response that does not match its Content-Encoding")
        except httpx.HTTPError as error:
            meter.outcomes["unreachable"] += 1
            return Trouble(f"cannot be reached ({type(error).__name__})")
        except MalformedError as error:
            meter.outcomes["malformed"] += 1
            return Trouble(str(error))
        except DataError:
            meter.outcomes["no_text"] += 1
            raise
        meter.outcomes[str(answer.status)] += 1
        if completion is not None:
            meter.completion = completion
            meter.latencies.append(time.monotonic() - sent)
            return completion
        if meaning == "refused":
            raise self._refusal(place, answer, body)
        return self._put_off(endpoint, answer)

    def _put_off(self, endpoint: _Endpoint, answer: EndpointResponse) -> Trouble:
        """Returns what an error means that may pass; an endpoint that asks to wait is left alone by all until then."""
        reason = f"status {answer.status}"
        asked = asked_seconds(answer.retry_after, datetime.now(UTC))
        if asked is not None:
            endpoint.shared.change(lambda state, now: state.hold(now + asked, now))
            if asked > self._part.longest_wait_seconds:
                reason += f"; it asks to wait for {asked:g} s"
        return Trouble(reason, is_limited=answer.status in LIMITED)

    def _joined(self, troubles: Mapping[int, Trouble]) -> Trouble:
        """Returns the trouble with all endpoints. Those that were not asked have an open circuit, or are to be left alone."""
        now = time.time()
        held = [endpoint.shared.seen().held_seconds(now) for endpoint in self._each]
        longest = self._part.longest_wait_seconds
        reasons = []
        for place, endpoint in enumerate(self._each):
            unasked = f"it asks to wait for {held[place]:.0f} s" if held[place] > longest else "it failed before"
            reason = troubles[place].reason if place in troubles else unasked
            reasons.append(reason if len(self._each) == 1 else f"{endpoint.url}: {reason}")
        return Trouble(
            reason="; ".join(reasons),
            is_limited=any(trouble.is_limited for trouble in troubles.values()),
            too_long=min(held) > longest,
        )

    def _place(self, endpoint: _Endpoint) -> str:
        return f"rewards.parts {self._part.name!r}: {endpoint.url}"

    def _refusal(self, place: int, answer: EndpointResponse, body: Mapping[str, Any]) -> ConfigurationError:
        """Returns the error for a response that a retry cannot change."""
        endpoint = self._each[place]
        where = self._place(endpoint)
        hint = self._hint(endpoint, answer, body)
        if answer.status in OF_CONTENTS and refused_field(answer.body, body) is None:
            return RequestRefusedError(place, where, answer.status, hint)
        return ConfigurationError(f"{where}: rejected with status {answer.status}{hint}")

    def _hint(self, endpoint: _Endpoint, answer: EndpointResponse, body: Mapping[str, Any]) -> str:
        """Returns what to check after a rejected request."""
        part = self._part
        status = answer.status
        if status in (401, 403):
            named = (
                f"the key in {endpoint.credential}" if endpoint.credential else "whether it needs a key (credential)"
            )
            return f" (not authorised); check {named}"
        if status == 404:
            return f" (not found); check url and model {part.model!r}"
        if 300 <= status < 400:
            return " (moved); redirects are not followed; set url to the new address"
        field = refused_field(answer.body, body)
        if field is not None:
            return f" (it does not support {field}); {REMEDIES[field]}"
        return (
            f"; check url, model {part.model!r} and what the endpoint supports (max_new_tokens, max_tokens_field, "
            "temperature, send_temperature, seeded)"
        )


REMEDIES: Mapping[str, str] = {
    "max_tokens": "set max_tokens_field: max_completion_tokens",
    "max_completion_tokens": "set max_tokens_field: max_tokens",
    "temperature": "set send_temperature: false, or a temperature that it supports",
    "seed": "set seeded: false",
}
"""What to set in a part, by the field of a request that an endpoint refuses."""


def _opened(
    part: EndpointPart, endpoint: FallbackEndpoint, read_block: BlockReader | None, folder: Path | None
) -> _Endpoint:
    key = key_of(part, endpoint, read_block)
    exchange = Exchange(_client_of(part, endpoint.url, key), part.timeout_seconds)
    path = None if folder is None else state_file(folder, endpoint.url, part.model, key)
    return _Endpoint(endpoint.url, str(endpoint.credential or ""), exchange, SharedState(path))


def _client_of(part: EndpointPart, url: str, key: str | None) -> httpx.AsyncClient:
    """Returns a client with the key and the environment's proxies and certificates; loopback bypasses proxies."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(
        max_connections=part.max_concurrent_requests, max_keepalive_connections=part.max_concurrent_requests
    )
    try:
        host = httpx.URL(url).host
    except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError for a name that only looks like Punycode
        raise ConfigurationError(f"rewards.parts {part.name!r}: url: {url} is not a valid URL: {error}") from None
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
