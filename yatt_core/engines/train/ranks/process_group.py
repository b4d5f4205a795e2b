"""The process-wide torch group, for engines whose ranks share a model: their libraries support no other group.

Consumes the ranks' own group, which has already met; the libraries' group meets in the same store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from yatt_core.engines.network import bind_libraries
from yatt_core.engines.train.ranks.collective import PREFIX_STORE, Collective
from yatt_core.engines.train.ranks.time_limits import time_limit
from yatt_core.engines.train.ranks.waiting import opened_process_group, record_collectives
from yatt_core.errors import InfrastructureError

# torch's stubs lack it.
HASH_STORE: Any = vars(distributed)["HashStore"]


def open_process_group(world: Collective) -> None:
    """Opens the process-wide group of the ranks of `world`, replacing an existing one. Raises `InfrastructureError`."""
    close_process_group()
    bind_libraries(world.host)
    record_collectives()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = HASH_STORE() if world.store is None else PREFIX_STORE("process", world.store)
    # No operation of the libraries moves more than the whole state.
    limit = time_limit(world.held, world.held)
    opened_process_group(world.rank)
    with lost_group(world):
        distributed.init_process_group(backend, store=store, rank=world.rank, world_size=world.ranks, timeout=limit)


def require_process_group(world: Collective) -> None:
    """Raises `InfrastructureError` if the ranks have not met."""
    if not distributed.is_initialized():
        raise InfrastructureError(f"rank {world.rank} is not connected to the trainer's other ranks")


def close_process_group() -> None:
    """Leaves the process-wide group, if there is one."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def lost_group(world: Collective) -> Iterator[None]:
    """Converts torch's errors about a lost rank to `InfrastructureError`; other errors pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "gloo" in str(error).lower():
            raise InfrastructureError(f"rank {world.rank} of {world.ranks} lost its group: {error}") from error
        raise
