"""What tells a run from one of the same name in another ledger, where both use one thing: a store, an MLflow or Prefect server.

Consumes the run's first revision, which nobody changes; produces a digest.
"""

from __future__ import annotations

from db.ledger import Ledger
from yatt_core.digests import json_digest


def owner_of(ledger: Ledger, run: str) -> str:
    """The same for as long as the run's ledger is kept. Raises `RunNotFound`."""
    first = ledger.runs.revision(run, 1)
    return json_digest([run, first.digest, first.created_at])
