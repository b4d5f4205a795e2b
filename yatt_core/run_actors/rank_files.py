"""What the trainer's ranks agree on, and what they need on nodes with disks of their own, once a disk.

Consumes the ranks' actors and the names of their disks. Prepared columns go from the first rank's node to the others
through Ray's object store; this process does not open them. Checkpoints come from the durable tier.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from yatt_core.actors.leftovers import Leftovers
from yatt_core.checkpoints.needed import Spans, divided
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, RowsReceipt, UpdateReceipt
from yatt_core.run_actors.calls import ActorCalls

log = logging.getLogger(__name__)


def share_prepared(
    calls: ActorCalls, ranks: Sequence[Any], names: list[str], disks: Sequence[str], term: int, prepared: PrepareReceipt
) -> None:
    """Brings the prepared columns to every disk but the first rank's. Raises `DataError` if they are damaged."""
    firsts = [rank for rank in _first_ranks(disks) if disks[rank] != disks[0]]
    if not firsts:
        return
    packed = ranks[0].pack_prepared.remote(prepared)
    asked = [ranks[rank].receive_prepared.remote(term, prepared, packed) for rank in firsts]
    calls.get(asked, "the trainer's ranks to receive the prepared columns", [names[0], *(names[r] for r in firsts)])


def bring_needed(
    calls: ActorCalls, ranks: Sequence[Any], names: list[str], disks: Sequence[str], term: int, folder: str, sha256: str
) -> bool:
    """Brings to every disk what its ranks need of a checkpoint; returns False if the checkpoint can only be read whole.

    Raises `DataError` if what was fetched is damaged.

    folder, sha256: the checkpoint's folder, relative to the run folder, and its manifest's sha256.
    """
    asked = [rank.needed.remote(term, folder, sha256) for rank in ranks]
    found: list[Spans | None] = calls.get(asked, "the trainer's ranks to say what they need", names)
    needed = [spans for spans in found if spans is not None]
    if len(needed) < len(found):
        return False
    asked = []
    for disk in dict.fromkeys(disks):
        members = [rank for rank, own in enumerate(disks) if own == disk]
        shares = divided([needed[rank] for rank in members])
        asked += [
            ranks[rank].bring_needed.remote(term, folder, share) for rank, share in zip(members, shares, strict=True)
        ]
    fetched: list[int] = calls.get(asked, "the trainer's ranks to fetch what they need of the checkpoint", names)
    log.info("%s: %d bytes were fetched for %d disks", folder, sum(fetched), len(set(disks)))
    return True


def bring_checkpoint(
    calls: ActorCalls,
    ranks: Sequence[Any],
    names: list[str],
    disks: Sequence[str],
    term: int,
    checkpoint: tuple[str, str, int],
    renew: bool,
) -> None:
    """Brings a checkpoint's files to every disk of a rank.

    checkpoint: its folder, relative to the run folder, its manifest's sha256, and its version.
    """
    folder, manifest_sha256, _ = checkpoint
    firsts = _first_ranks(disks)
    asked = [ranks[rank].bring_checkpoint.remote(term, folder, manifest_sha256, renew) for rank in firsts]
    calls.get(asked, "the trainer's ranks to fetch the checkpoint", [names[rank] for rank in firsts])


def tidy(
    calls: ActorCalls,
    controllers: Sequence[Any],
    ranks: Sequence[Any],
    names: list[str],
    term: int,
    leftovers: Leftovers,
) -> None:
    """Has the actors delete files of their nodes' disks.

    Only ranks delete checkpoints, and all have done so before the next one begins: a late list would not name it.
    """
    if leftovers.kept_checkpoints is not None:
        calls.get([rank.tidy.remote(term, leftovers) for rank in ranks], "the trainer's ranks to tidy", names)
        return
    for actor in (*controllers, *ranks):
        actor.tidy.remote(term, leftovers)


def agreed(task: BatchTask, receipts: Sequence[UpdateReceipt]) -> UpdateReceipt:
    """Returns the receipt of an update. Raises `InfrastructureError` if the ranks' fingerprints differ."""
    fingerprints = [receipt.fingerprint for receipt in receipts]
    if any(fingerprint != fingerprints[0] for fingerprint in fingerprints):
        raise InfrastructureError(f"iteration {task.key.iteration}: the trainer's ranks disagree: {fingerprints}")
    return receipts[0]


def agreed_evaluation(receipts: Sequence[RowsReceipt]) -> RowsReceipt:
    """Returns the receipt of an evaluation. Raises `InfrastructureError` if the ranks' metrics differ."""
    told = [sorted(receipt.metrics.items()) for receipt in receipts]
    if any(repr(metrics) != repr(told[0]) for metrics in told):  # as texts, since NaN differs from itself
        key = receipts[0].key
        raise InfrastructureError(f"iteration {key.iteration}: the trainer's ranks disagree on the evaluation: {told}")
    return receipts[0]


def _first_ranks(disks: Sequence[str]) -> list[int]:
    """Returns the first rank of each disk."""
    return [disks.index(disk) for disk in dict.fromkeys(disks)]
