"""Records that weights go another way to the engines than the spec of an earlier version's run says."""

from __future__ import annotations

from flows.driver.context import RunContext

TRANSPORT = "sync_transport"
"""The kind of the link: its body has what the spec asks for, and what is used in its place."""
USED = "direct"


def record_transport(context: RunContext) -> None:
    """Appends a link to the audit chain, once in a run whose spec has a transport that no longer exists.

    Virtual engines are sent no weights.
    """
    spec = context.spec
    asked = spec.trainer.sync_transport
    sends = spec.samples_responses and not spec.virtual
    if asked == USED or not sends or context.ledger.browse.events(context.run, 1, kinds=(TRANSPORT,)):
        return
    context.ledger.events.append(context.run, TRANSPORT, {"asked": asked, "used": USED}, context.fence)
    context.observer.stage(
        "weights go from the trainer directly to the engines, and no longer through Ray's object store "
        f"(trainer.sync_transport: {asked})"
    )
