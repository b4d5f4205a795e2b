"""A tool that takes as long as a search may: mostly short, sometimes long. Consumes a query; produces the time that it took."""

from __future__ import annotations

import hashlib
import math
import time
from statistics import NormalDist

MEDIAN_SECONDS = 0.1
SIGMA = 1.2
LONGEST_SECONDS = 3.0


def search(expression: str) -> str:
    """Returns the seconds that it has slept, which a query determines: log-normal, up to a maximum."""
    number = int.from_bytes(hashlib.sha256(expression.encode()).digest()[:7], "big")
    noise = NormalDist().inv_cdf((number + 0.5) / 2**56)
    seconds = min(MEDIAN_SECONDS * math.exp(SIGMA * noise), LONGEST_SECONDS)
    time.sleep(seconds)
    return f"{seconds:.2f}"
