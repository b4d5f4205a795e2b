"""How long a rank waits for the others: a fixed time, and more for each byte that is moved or held.

Pure functions, except that the size of a model is read from its folder.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

BASE_SECONDS = 900.0
"""How long a rank waits even if there is next to nothing to move. The watchdog's deadlines are shorter by default
(`recovery.phase_deadline_seconds`), so that it names the rank for which the others wait before they give up."""
BYTES_PER_SECOND = 50e6
"""The slowest network and disk that is waited for: less than half of gigabit Ethernet."""
SUM = 2
"""An all-reduce sends and receives a tensor about twice."""
STATE = 6
"""Weights and moments in float32 take this many times a model's file in half precision."""


def time_limit(moved: int, held: int = 0) -> timedelta:
    """Returns the time after which a rank gives up an operation.

    moved: bytes that the operation sends or receives per rank.
    held: bytes that another rank may be reading or copying before it joins.
    """
    return timedelta(seconds=BASE_SECONDS + (moved + held) / BYTES_PER_SECOND)


def state_bytes(model_folder: Path) -> int:
    """Returns about as many bytes as a trainer of the model holds; 0 if the folder has no weights."""
    return STATE * sum(file.stat().st_size for file in model_folder.glob("*.safetensors"))
