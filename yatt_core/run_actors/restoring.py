"""Loads a checkpoint into the trainer's ranks: first those of each node verify it together, then each loads its part.

Consumes the ranks' actors and a checkpoint's manifest as the ledger names it. Nothing is loaded before everything that
is read has been verified on every node. Nodes with disks of their own fetch what their ranks need, once a disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.rank_files import bring_checkpoint, bring_needed


def readers_of(nodes: Sequence[str]) -> list[tuple[int, int]]:
    """Returns, for each rank, its number among the ranks of its node, and how many these are.

    nodes: the ranks' nodes.
    """
    return [(nodes[:rank].count(node), nodes.count(node)) for rank, node in enumerate(nodes)]


def restore_ranks(
    calls: ActorCalls,
    ranks: Sequence[Any],
    names: list[str],
    term: int,
    checkpoint: tuple[str, str, int],
    disks: Sequence[str] = (),
    renew: bool = False,
) -> None:
    """Loads a checkpoint into all ranks. Raises `DataError` if a file does not match its digest.

    checkpoint: its folder, relative to the run folder, its manifest's sha256, and its version.
    disks: the ranks' disks; empty if all nodes share one.
    renew: whether damaged files on disks of nodes are replaced too, not only missing ones.
    """
    folder, manifest_sha256, version = checkpoint
    standings = calls.get([rank.standing.remote(term) for rank in ranks], "the trainer's ranks to answer", names)
    if disks and bring_needed(
        calls=calls, ranks=ranks, names=names, disks=disks, term=term, folder=folder, sha256=manifest_sha256
    ):
        partly = [rank.restore.remote(term, folder, manifest_sha256, version, True) for rank in ranks]
        calls.get(partly, "the trainer's ranks to restore", names)
        return
    if disks:
        bring_checkpoint(
            calls=calls, ranks=ranks, names=names, disks=disks, term=term, checkpoint=checkpoint, renew=renew
        )
    verifying = [
        rank.verify_checkpoint.remote(term, folder, manifest_sha256, number, readers)
        for rank, (number, readers) in zip(ranks, readers_of([each.host for each in standings]), strict=True)
    ]
    calls.get(verifying, "the trainer's ranks to verify the checkpoint", names)
    loading = [rank.restore.remote(term, folder, manifest_sha256, version) for rank in ranks]
    calls.get(loading, "the trainer's ranks to restore", names)
