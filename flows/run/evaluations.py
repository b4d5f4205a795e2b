"""The results of the held-out tasks as the ledger has them: in the receipt of each iteration's `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db.ledger import Ledger
from yatt_core.evaluation.paired import TaskKey, accuracy_of
from yatt_core.spec import RunSpec

TASKS = "tasks"
"""Key of the results of `evaluate`, one for each held-out task in order."""


def evaluated_scores(
    ledger: Ledger, run: str, branch: int, iteration: int, spec: RunSpec
) -> dict[TaskKey, float | None]:
    """Returns the fraction of correct answers to each held-out task at an iteration, None where no answer has a score.

    Empty if the iteration was not evaluated.
    """
    names = spec.data.source_names
    done = ledger.phases.done(run, branch, iteration, "evaluate")
    tasks: Sequence[Mapping[str, Any]] = () if done is None or done.receipt is None else done.receipt.get(TASKS, ())
    return {(names[task["source"]], task["prompt_id"]): accuracy_of(task) for task in tasks}
