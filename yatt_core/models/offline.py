"""Keeps libraries from asking the Hub on their own, and lets through the one place that asks on purpose.

Consumes and changes the environment: what the user had said about being offline is kept for those who fetch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OFFLINE = "HF_HUB_OFFLINE"
SAID = "YATT_USER_HF_HUB_OFFLINE"
"""What the variable was before YATT set it; child processes inherit it."""
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_asking = threading.Lock()


def keep_libraries_offline() -> None:
    """Has `huggingface_hub`, if it is imported from now on, refuse to ask; models are loaded from folders alone."""
    os.environ.setdefault(SAID, os.environ.get(OFFLINE, ""))
    os.environ[OFFLINE] = "1"


def user_is_offline() -> bool:
    """Returns True if the user has forbidden questions to the Hub."""
    return os.environ.get(SAID, os.environ.get(OFFLINE, "")).upper() in _TRUE


@contextmanager
def asking_on_purpose() -> Iterator[None]:
    """Lets `huggingface_hub` ask, whatever it was told when it was imported; one thread of the process at a time."""
    from huggingface_hub import constants

    with _asking:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = False
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before
