"""Reward functions that misbehave while a file says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

from yatt_core.data.prompts import Prompt


def broken(prompt: Prompt, response: str, switch: str) -> float:
    """Does what the switch file says: `raise`, `hang`, `nan`, or `die`; scores 0.5 without one."""
    path = Path(switch)
    fault = path.read_text() if path.exists() else ""
    if fault == "raise":
        raise ValueError("no such verifier")
    if fault == "hang":
        time.sleep(3600)
    if fault == "die":
        os._exit(9)
    return float("nan") if fault == "nan" else 0.5
