"""Puts a request for a checkpoint into words: when one is taken, and which one is the newest until then.

Consumes what a run waits for and its newest iterations; produces one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.words import wait_text

if TYPE_CHECKING:
    from db.write.waits import WaitRow


def checkpoint_words(run: str, wait: WaitRow | None, newest: int | None, last_commit: int, now: float) -> str:
    """Returns what becomes of a request for a checkpoint.

    wait: what the run waits for; None if it goes on.
    newest: the iteration of its newest checkpoint; None if it has none.
    now: seconds since 1970.
    """
    if wait is None:
        return f"{run} is asked for a checkpoint after its current iteration"
    if newest is None:
        known = "it has none yet"
    elif newest == last_commit:
        known = f"the newest is that of iteration {newest}, its last commit"
    else:
        known = f"the newest is that of iteration {newest}, and its last commit is iteration {last_commit}"
    holds = wait.returned_at is None and newest != last_commit
    when = "once it gives its devices back or goes on" if holds else "once it goes on"
    return f"{run} is asked for a checkpoint, which it takes {when}; {known}; it waits {wait_text(wait, now)}"
