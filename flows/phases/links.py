"""Links between a run's pages: tells tracker and Prefect where the run is shown, when a session begins.

Consumes the addresses that the session was given. Produces outbox rows with tags and a note, and a Markdown artifact of the
flow run. Nothing depends on them: if Prefect's server or the ledger is unreachable, that is logged and its part left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from db.core.errors import LedgerUnavailable
from db.write.outbox import OutboxEntry
from flows.delivery.outbox import mlflow_place, row_ids
from flows.driver.context import RunContext
from flows.prefect_io.prefect_server import prefect_of_environment
from flows.run.description import note_of
from flows.run.trackers import for_trackers

log = logging.getLogger("yatt_core.flow")


def publish_links(context: RunContext, flow_run: str, publish_note: Callable[[str, str, str], None]) -> None:
    """Sends the links of this session; does nothing where there is no page to link to.

    flow_run: Prefect's id of the flow run.
    publish_note: publishes a Markdown artifact, given its name, text and description.
    """
    try:
        _publish_links(context, flow_run, publish_note)
    except LedgerUnavailable as error:
        log.warning("the links to the run's pages are left out: %s", error)


def _publish_links(context: RunContext, flow_run: str, publish_note: Callable[[str, str, str], None]) -> None:
    links = links_of(context, flow_run)
    if others := {name: address for name, address in links.items() if name != "Prefect"}:
        lines = [f"- [{name}]({address})" for name, address in others.items()]
        publish_note("links", "\n".join([f"**{context.run}** in", "", *lines]), "The run's other pages")
    told = {name: address for name, address in links.items() if name != "MLflow"}
    if not told:
        return
    tags = {f"yatt.{name.lower()}_url": address for name, address in told.items()}
    note = {"text": note_of(context.run, context.spec, told)}
    now = context.clock.time_ms()
    entries = [
        OutboxEntry(f"{key}/{kind}", kind, body, now)
        for key in row_ids(context.run, context.branch, f"t{context.fence.term}/links")
        for kind, body in (("tags", tags), ("note", note))
    ]
    context.ledger.outbox.enqueue(context.fence, for_trackers(context.spec, entries))


def links_of(context: RunContext, flow_run: str) -> dict[str, str]:
    """Returns the run's pages, by the name of the server."""
    pages = replace(context.pages, prefect=prefect_of_environment())
    return pages.links(context.run, mlflow_place(context.ledger, context.run, context.branch), flow_run)
