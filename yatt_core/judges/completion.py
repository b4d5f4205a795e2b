"""What an OpenAI-compatible `chat/completions` is asked and answers. Pure functions between items, JSON and judgements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import DataError
from yatt_core.judges.template import filled_text
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.judges import EndpointPart

SEED_RANGE = 2**31
"""Endpoints take seeds below this."""
COUNT_RANGE = 2**31
"""Counts of tokens are kept below this; a larger one is none."""


class MalformedError(Exception):
    """An answer that is none; asking again may help."""


@dataclass(frozen=True, slots=True)
class Completion:
    """text: of the first choice. tokens, prompt_tokens: as the endpoint counts them; 0 where it does not, or absurdly."""

    text: str
    tokens: int
    prompt_tokens: int


def question(part: EndpointPart, item: JudgeItem, seed: int) -> dict[str, Any]:
    """The body of a request for one judgement. Raises `DataError` for an item that the template cannot show."""
    body: dict[str, Any] = {
        "model": part.model,
        "messages": [{"role": "user", "content": filled_text(part.template, item)}],
        "temperature": part.temperature,
        "max_tokens": part.max_new_tokens,
        "n": 1,
    }
    return body | {"seed": seed % SEED_RANGE} if part.seeded else body


def completion_of(body: bytes) -> Completion:
    """The answer in a response's body. Raises `MalformedError` for one that holds none, `DataError` for one without text."""
    try:
        tree = json.loads(body)
        choice = tree["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
        usage = tree.get("usage") or {}
        tokens, prompt_tokens = (_count(usage.get(key)) for key in ("completion_tokens", "prompt_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(f"an answer that is no chat completion ({type(error).__name__})") from None
    if not isinstance(text, str):
        raise DataError(f"the endpoint gave no text (finish_reason {reason!r:.40})")
    # JSON can hold halves of surrogate pairs, which no file can.
    return Completion(text.encode("utf-8", "replace").decode(), tokens, prompt_tokens)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_RANGE else 0
