"""Announces the transfers between the stages of a pipeline, which torch does not record on gloo.

Consumes Megatron-Core's communicator; a rank that waits for another stage can then be told from one that hangs.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from yatt_core.engines.train.ranks.waiting import waiting_for


def announce_transfers() -> None:
    """Wraps the method through which all transfers go; further calls change nothing."""
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    transfer = P2PCommunicator._communicate
    if hasattr(transfer, "__wrapped__"):
        return

    @wraps(transfer)
    def announced(self: Any, **arguments: Any) -> Any:
        with waiting_for("a transfer between stages", _peers(self, arguments)):
            return transfer(self, **arguments)

    P2PCommunicator._communicate = announced


def _peers(communicator: Any, arguments: dict[str, Any]) -> list[int]:
    """Returns the ranks from which or to which the transfer goes."""
    before = arguments["recv_prev"] or arguments["tensor_send_prev"] is not None
    after = arguments["recv_next"] or arguments["tensor_send_next"] is not None
    peers = [communicator.prev_rank] if before else []
    return peers + ([communicator.next_rank] if after else [])
