"""Whether this process's runs use a Ray cluster that exists already. Imports nothing, because checks before a run ask it.

Consumes the environment.
"""

from __future__ import annotations

import os

RAY_VARIABLE = "YATT_RAY_ADDRESS"


def attached() -> bool:
    """Returns True if the environment names an external Ray cluster."""
    return bool(os.environ.get(RAY_VARIABLE))
