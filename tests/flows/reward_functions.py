"""A reward function that misbehaves as a file says, and one under which few groups are valid."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from yatt_core.prompts.stream import Prompt


def broken(prompt: Prompt, response: str, switch: str) -> float:
    """Does what the switch file says: `raise`, `hang`, `nan` or `die`. Without a file it returns 0.5."""
    path = Path(switch)
    fault = path.read_text() if path.exists() else ""
    if fault == "raise":
        raise ValueError("no such verifier")
    if fault == "hang":
        time.sleep(3600)
    if fault == "die":
        os._exit(9)
    return float("nan") if fault == "nan" else 0.5


def sparse(prompt: Prompt, response: str, share: float) -> float:
    """Returns 0 or 1, by the response, for a fraction `share` of the prompts, and 0 for all others."""
    if _noise(prompt.prompt_id) >= share:
        return 0.0
    return float(_noise(response) < 0.5)


def failing(prompt: Prompt, response: str, share: float) -> float:
    """Raises for this share of the responses, the same ones always; the others score 0 or 1 at random."""
    if _noise(f"{prompt.prompt_id}|{response}|fails") < share:
        raise ConnectionError("the scorer is out of order")
    return float(_noise(f"{prompt.prompt_id}|{response}") < 0.5)


def _noise(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") / 2.0**64
