"""Requests and responses of an OpenAI-compatible `chat/completions` endpoint.

Pure functions between items, JSON and judgements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import DataError
from yatt_core.judges.template import filled_text
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.judges import EndpointPart

SEED_RANGE = 2**31
"""Endpoints accept seeds below this value."""
COUNT_RANGE = 2**31
"""Token counts are below this value; larger ones are ignored."""
BYTES_PER_TOKEN = 4
"""Of usual text; what the endpoint counts replaces the estimate."""
CHANGEABLE_FIELDS = ("max_tokens", "max_completion_tokens", "temperature", "seed")
"""Fields of a request that some endpoints refuse, and that options of a part change or leave out."""


class MalformedError(Exception):
    """The response is not a chat completion; a retry may help."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A chat completion.

    text: text of the first choice.
    cut: whether it ended at its token limit.
    tokens, prompt_tokens: numbers of tokens as counted by the endpoint; 0 if it reports no plausible count.
    """

    text: str
    tokens: int
    prompt_tokens: int
    cut: bool = False


def question(part: EndpointPart, item: JudgeItem, seed: int) -> dict[str, Any]:
    """Returns the request body for one judgement. Raises `DataError` if the item lacks what the template needs."""
    body: dict[str, Any] = {
        "model": part.model,
        "messages": [{"role": "user", "content": filled_text(part.template, item)}],
        part.max_tokens_field: part.max_new_tokens,
        "n": 1,
    }
    if part.send_temperature:
        body["temperature"] = part.temperature
    if part.seeded:
        body["seed"] = seed % SEED_RANGE
    return body


def smallest_question(part: EndpointPart) -> dict[str, Any]:
    """Returns the request body of a question of one token, to see whether anything is answered."""
    return {"model": part.model, "messages": [{"role": "user", "content": "1"}], part.max_tokens_field: 1}


def shortest_question(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request body with the same settings as another and next to no text, to see whether they are accepted."""
    return {**body, "messages": [{"role": "user", "content": "1"}]}


def estimated_tokens(body: Mapping[str, Any], part: EndpointPart) -> int:
    """Returns about how many tokens a request will count: those of its text, and the most that it may be answered with."""
    text = "".join(message["content"] for message in body["messages"])
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 1 + int(body[part.max_tokens_field])


def refused_field(body: bytes, sent: Mapping[str, Any]) -> str | None:
    """Returns the field of a request that an error response says is not supported, out of those that a part may change.

    Nothing else of the response is used, since it may repeat what was sent.
    """
    try:
        tree = json.loads(body)
        error = tree.get("error", tree)
        detail = tree.get("detail") or []
        message = detail if isinstance(detail, str) else str(error.get("message"))
        named = [error.get("param"), *([] if isinstance(detail, str) else [each["loc"][-1] for each in detail])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    fields = [field for field in CHANGEABLE_FIELDS if field in sent]
    said = [field for field in fields if field in named]
    said += [field for field in fields if re.search(rf"['\"`]{field}['\"`]", message)]
    return said[0] if said else None


def completion_of(body: bytes) -> ChatCompletion:
    """Returns the completion in a response body.

    Raises `MalformedError` if there is none, and `DataError` if it has no text.
    """
    try:
        tree = json.loads(body)
        choice = tree["choices"][0]
        text = choice["message"]["content"]
        reason = choice.get("finish_reason")
        usage = tree.get("usage") or {}
        tokens, prompt_tokens = (_count(usage.get(key)) for key in ("completion_tokens", "prompt_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(f"a response that is not a chat completion ({type(error).__name__})") from None
    if not isinstance(text, str):
        raise DataError(f"the endpoint returned no text (finish_reason {reason!r:.40})")
    # JSON can contain lone surrogates, which UTF-8 files cannot.
    return ChatCompletion(text.encode("utf-8", "replace").decode(), tokens, prompt_tokens, cut=reason == "length")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_RANGE else 0
