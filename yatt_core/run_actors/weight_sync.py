"""Brings the weights of a version from the trainer's ranks into rollout engines, bucket by bucket.

Consumes handles of actors; produces receipts. Buckets go from rank 0 to the engines as references that this process does not
open. While the engines take one, the ranks make the next, and no other is begun before the engines are done: two are kept at
most. Where this breaks off, at whatever bucket, the engines that were given some stay dirty, and are synced again from the first
bucket on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.protocols.receipts import SyncReceipt
from yatt_core.run_actors.calls import ActorCalls


@dataclass(frozen=True, slots=True)
class SyncParties:
    """Handles of all of the trainer's ranks, and of the engines that lack the weights; the names of both, for messages."""

    ranks: Sequence[Any]
    engines: Sequence[Any]
    rank_names: list[str]
    engine_names: list[str]


def sync_weights(calls: ActorCalls, term: int, version: int, parties: SyncParties) -> list[SyncReceipt]:
    """Raises `InfrastructureError` for an actor that is lost on the way, and for weights that are not the engines' model's."""

    def of_engines(references: list[Any], what: str) -> list[Any]:
        return calls.get(references, f"the rollout engines to {what} new weights", parties.engine_names)

    of_engines([engine.begin_update.remote(term, version) for engine in parties.engines], "make ready for")
    number, last, taking = 0, False, list[Any]()
    while not last:
        asked = [rank.export.options(num_returns=2).remote(term, version, number) for rank in parties.ranks]
        ends = [end for end, _ in asked]
        last = calls.get(ends, "the trainer's ranks to export their weights", parties.rank_names)[0]
        of_engines(taking, "take")
        bucket = asked[0][1]
        taking = [engine.take.remote(term, bucket) for engine in parties.engines]
        # From here on the engines' calls alone keep the bucket.
        del asked, bucket
        number += 1
    of_engines(taking, "take")
    receipts: list[SyncReceipt] = of_engines(
        [engine.end_update.remote(term) for engine in parties.engines], "put to work"
    )
    return receipts
