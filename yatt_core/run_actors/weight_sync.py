"""Transfers the weights of a version from the trainer's ranks to rollout engines, bucket by bucket.

Consumes handles of actors; produces receipts. Buckets go from rank 0 to the engines as references that this
process does not open. While the engines take one bucket, the ranks produce the next, and no further bucket is
started before the engines are done: at most two are kept. If the transfer stops at any bucket, the engines that
received any bucket stay dirty and are synced again from the first bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.protocols.receipts import SyncReceipt
from yatt_core.run_actors.calls import ActorCalls


@dataclass(frozen=True, slots=True)
class SyncParties:
    """Handles of all trainer ranks and of the engines that lack the weights, each with their names for messages."""

    ranks: Sequence[Any]
    engines: Sequence[Any]
    rank_names: list[str]
    engine_names: list[str]


def sync_weights(calls: ActorCalls, term: int, version: int, parties: SyncParties) -> list[SyncReceipt]:
    """Transfers a version's weights to the engines and returns their receipts.

    Raises `InfrastructureError` if an actor is lost during the transfer or the weights do not match the
    engines' model.
    """

    def of_engines(references: list[Any], what: str) -> list[Any]:
        return calls.get(references, f"the rollout engines to {what} new weights", parties.engine_names)

    of_engines([engine.begin_update.remote(term, version) for engine in parties.engines], "prepare for")
    number, last, taking = 0, False, list[Any]()
    while not last:
        asked = [rank.export.options(num_returns=2).remote(term, version, number) for rank in parties.ranks]
        ends = [end for end, _ in asked]
        last = calls.get(ends, "the trainer's ranks to export their weights", parties.rank_names)[0]
        of_engines(taking, "take")
        bucket = asked[0][1]
        taking = [engine.take.remote(term, bucket) for engine in parties.engines]
        # From here on, only the engines' calls hold a reference to the bucket.
        del asked, bucket
        number += 1
    of_engines(taking, "take")
    receipts: list[SyncReceipt] = of_engines([engine.end_update.remote(term) for engine in parties.engines], "apply")
    return receipts
