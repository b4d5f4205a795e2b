"""The stages of a controller's work on a shard: timed for the shard's receipt and named in the process's account.

Consumes and changes a shard's timing; see `yatt_core.spent_time` for the account.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core.logs import timed
from yatt_core.spent_time import DATA, REWARDS, TOOLS, spent

KINDS = {"log": DATA, "seal": DATA, "store": DATA, "reward": REWARDS, "judged": DATA, "tools": TOOLS}


@contextmanager
def stage(timing: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds spent inside to a stage of a shard."""
    with timed(timing, name), spent(KINDS[name], name):
        yield
