"""Which models a run was merged from, and which runs were merged from it. Consumes the audit chains; produces plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.ledger import Ledger
from flows.soups.record import MERGED, SOUP

MERGE = "merge"
"""Kind of the link that names the models from which a run's weights were merged."""


def merge_of(ledger: Ledger, run: str) -> Mapping[str, Any] | None:
    """Returns what a run's weights were merged from: soup, preference, alpha, parents; None if they were not merged."""
    links = ledger.events.of_kind(run, MERGE)
    return links[0].body if links else None


def merged_from(ledger: Ledger, run: str) -> tuple[str, ...]:
    """Returns the runs of merged models of which a run is a parent, oldest first."""
    soup = SOUP.record_of(ledger, run)
    if soup is None:
        return ()
    made = [link.body["run"] for link in ledger.events.of_kind(soup, MERGED)]
    bodies = {each: merge_of(ledger, each) for each in made}
    return tuple(
        each for each, body in bodies.items() if body and any(parent["run"] == run for parent in body["parents"])
    )
