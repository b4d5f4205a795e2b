"""Parts and items for the tests of judges."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from yatt_core.protocols.judges import JudgeItem, JudgeRequest, Verdict
from yatt_core.spec.rewards.judges import JudgePart

TEMPLATE = "Is the answer right? {prompt} {response}"
ADAPTER: TypeAdapter[JudgePart] = TypeAdapter(JudgePart)


def generative(**changes: Any) -> Any:
    """Returns a generative part with a virtual engine."""
    whole = {"kind": "generative", "name": "judge", "engine": {"kind": "virtual"}, "template": TEMPLATE}
    return ADAPTER.validate_python({**whole, **changes})


def endpoint(url: str, **changes: Any) -> Any:
    """Returns an endpoint part that waits only briefly before a retry."""
    whole = {
        "kind": "endpoint",
        "name": "judge",
        "url": url,
        "model": "m",
        "template": TEMPLATE,
        "backoff_seconds": 0.001,
    }
    return ADAPTER.validate_python({**whole, **changes})


def item(
    number: int, response: str = "nus", prompt: str = "sun", answer: str | None = "nus", judgements: int = 1
) -> JudgeItem:
    """Returns a response to judge; the seeds of its judgements differ from those of any other number."""
    return JudgeItem(number, prompt, response, answer, tuple(1000 * number + k for k in range(judgements)))


def verdicts(judge: Any, *items: JudgeItem) -> dict[int, Verdict]:
    """Returns all verdicts by number, after checking that there is exactly one per item."""
    pieces = list(judge.judge(JudgeRequest(items)))
    said = [verdict for piece in pieces for verdict in piece]
    assert sorted(verdict.number for verdict in said) == sorted(item.number for item in items)
    return {verdict.number: verdict for verdict in said}
