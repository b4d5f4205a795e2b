"""What an actor waits for: the operation in which it is, and the actors without which it cannot go on.

Operations of the ranks' own group are announced with `waiting_for`. The process-wide group and those made from it
belong to libraries, also to torch's native code: torch's flight recorder knows every collective operation that has
begun and not ended, on gloo and on NCCL. It does not record what gloo sends from one rank to another, so the
pipeline's transfers are announced too. Consumes nothing but the process's state; the presence thread reads it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from yatt_core.spent_time import WAITING, spent

RANK = "trainer"
"""Ranks are actors of this role."""
RECORDED = "200"
"""Operations that the recorder keeps; those that have not ended are the latest."""
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Torch's functions that return the operations of gloo and of NCCL; a build for CPUs lacks the second."""


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that has begun and not ended.

    operation: such as `all_reduce 12 of default_pg`.
    actors: the names of the other actors that take part.
    """

    operation: str
    actors: tuple[str, ...]


NOTHING = PendingOperation("", ())
"""What an actor waits for if it waits for no other."""

_announced: dict[object, PendingOperation] = {}
"""By a key of the announcement's own: two threads may be in operations that are equal."""
_announcing = threading.Lock()
_own_rank = -1
_opened_ns = 0


def rank_name(rank: int) -> str:
    """Returns the name of a rank's actor."""
    return f"{RANK}-{rank}"


def waiting_for(operation: str, ranks: Sequence[int]) -> AbstractContextManager[None]:
    """Announces an operation with other ranks for as long as it takes."""
    return waiting_for_actors(operation, [rank_name(rank) for rank in ranks])


@contextmanager
def waiting_for_actors(operation: str, actors: Sequence[str]) -> Iterator[None]:
    """Announces an operation with other actors for as long as it takes."""
    key = object()
    with _announcing:
        _announced[key] = PendingOperation(operation, tuple(actors))
    try:
        with spent(WAITING, "other actors"):
            yield
    finally:
        with _announcing:
            del _announced[key]


def record_collectives() -> None:
    """Has torch record collective operations, unless the environment says how many; call it before the first group."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)


def opened_process_group(rank: int) -> None:
    """Has the operations of the process-wide group and of those made from it count, from now on.

    An operation that failed in an earlier group would otherwise look as if it had not ended.
    """
    global _own_rank, _opened_ns
    _own_rank = rank
    _opened_ns = time.time_ns()


def current_waits() -> tuple[PendingOperation, ...]:
    """Returns the operations that this process has begun and not ended, the outermost first."""
    with _announcing:
        announced = tuple(_announced.values())
    return (*announced, *_recorded())


def _recorded() -> Iterator[PendingOperation]:
    """Yields the unended operations of the process-wide group and of those made from it."""
    native = sys.modules.get("torch._C._distributed_c10d")
    if native is None or not _opened_ns:
        return
    for dump in DUMPS:
        if hasattr(native, dump):
            for entry in json.loads(getattr(native, dump)(True, False)).get("entries", ()):
                if not entry["retired"] and entry["time_created_ns"] >= _opened_ns:
                    yield from _wait_of(entry)


def _wait_of(entry: dict[str, Any]) -> Iterator[PendingOperation]:
    from torch import distributed
    from torch._C._distributed_c10d import _resolve_process_group

    name, description = entry["process_group"]
    try:
        group = _resolve_process_group(name)
    except RuntimeError:  # the ranks' own group, whose operations are announced, or one that has been closed
        return
    operation = entry["profiling_name"].rpartition(":")[2]
    others = tuple(rank_name(rank) for rank in distributed.get_process_group_ranks(group) if rank != _own_rank)
    yield PendingOperation(f"{operation} {entry['collective_seq_id']} of {description}", others)
