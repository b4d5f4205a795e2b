"""Callbacks: observers of commits and of the end of a session.

Named in a spec (`callbacks`), they run in the driver's process; passed to `train`, `resume` or `Run.wait`, in the caller's,
which reads the commits from the ledger.
"""

from __future__ import annotations

from flows.run.callbacks import Callback, Commit, End

__all__ = ["Callback", "Commit", "End"]
