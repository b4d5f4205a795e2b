"""Ranks in threads of this process: real groups over gloo, without the start of processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.errors import YattError

Found = TypeVar("Found")


def on_ranks(ranks: int, work: Callable[[int, str], Found]) -> list[Found | YattError]:
    """Returns what each rank finds, given its number and the address of the meeting; an error instead is returned too."""
    address = hold_address()

    def run(rank: int) -> Found | YattError:
        try:
            return work(rank, address)
        except YattError as error:
            return error

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


def in_groups(ranks: int, work: Callable[[Collective], Found]) -> list[Found | YattError]:
    """Returns what each rank of a group finds, as `on_ranks` does."""

    def met(rank: int, address: str) -> Found:
        group = Collective()
        group.connect(rank, ranks, address)
        return work(group)

    return on_ranks(ranks, met)
