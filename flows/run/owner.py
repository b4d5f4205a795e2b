"""Distinguishes a run from a run of the same name in another ledger if both use the same store or server.

Consumes the first revision of the run's spec, which never changes; produces a digest.
"""

from __future__ import annotations

from db.ledger import Ledger
from yatt_core.digests import json_digest


def owner_of(ledger: Ledger, run: str) -> str:
    """Returns the run's digest, which is constant for the life of its ledger. Raises `RunNotFound`."""
    first = ledger.runs.revision(run, 1)
    return json_digest([run, first.digest, first.created_at])
