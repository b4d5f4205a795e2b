"""The judge and the tool's service of the campaign: answers that depend on nothing but what is asked.

Consumes the body of a request. Produces a chat completion with the judge's verdict, or the value of an expression, and the
identity of what was asked. Pure but for a short pause, as if there was something to compute.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from aiohttp import web

from yatt_core.tools.builtin import calculator

PROBE = "probe"
"""The identity of a request that asks for next to nothing, to see whether the judge is there."""
SECONDS = 0.03


def verdict_on(text: str, seed: int) -> str:
    """Returns the judge's answer to a question."""
    return "yes" if hashlib.sha256(f"{seed}:{text}".encode()).digest()[0] % 2 else "no"


def judged(body: bytes) -> str:
    """Returns the identity of a question to the judge: its seed, which no other question of a run has."""
    asked: dict[str, Any] = json.loads(body)
    return str(asked["seed"]) if "seed" in asked else PROBE


def called(body: bytes) -> str:
    """Returns the identity of a call: its expression."""
    return str(json.loads(body)["expression"])


async def judge(request: web.Request, body: bytes) -> web.StreamResponse:
    """Answers a question to the judge."""
    await asyncio.sleep(SECONDS)
    asked: dict[str, Any] = json.loads(body)
    answer = verdict_on(str(asked["messages"][-1]["content"]), int(asked.get("seed", 0)))
    message = {"role": "assistant", "content": answer}
    usage = {"completion_tokens": 1, "prompt_tokens": 8}
    response = web.json_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    response["told"] = answer
    return response


async def calculate(request: web.Request, body: bytes) -> web.StreamResponse:
    """Answers a call."""
    await asyncio.sleep(SECONDS)
    try:
        told: dict[str, str] = {"value": calculator(called(body))}
    except (ValueError, ArithmeticError) as error:
        told = {"error": str(error)}
    return web.json_response(told)
