"""Which settings a run may change while it goes on: those that stand in `workload.tunable`.

Consumes the facts of a run, and the names of the settings that may not change. Raises `ValueError` for one of these.
"""

from __future__ import annotations

from collections.abc import Set

from yatt_core.workloads.contract import RunFacts


def refuse_tunable(facts: RunFacts, fixed: Set[str], shaped: str) -> None:
    """Raises `ValueError` for a setting in `workload.tunable` that may not change.

    fixed: names of such settings.
    shaped: what depends on them, for the message.
    """
    if found := sorted(fixed & facts.tunable):
        raise ValueError(f"tunable.{found[0]}: shapes {shaped}; expected it in settings")
