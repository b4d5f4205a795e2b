"""Something of a home that this version would change, or could not go on with. A plain value, for tables and JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingChange:
    """Something that is not as it was when it was last used.

    what: the ledger, a library, a part of a run, or what a run belongs to.
    run: None for what concerns the home or a pipeline.
    before, after: versions; empty where there are none.
    effect: what may follow.
    blocks: whether it cannot go on like this.
    """

    what: str
    run: str | None
    before: str
    after: str
    effect: str
    blocks: bool = False
