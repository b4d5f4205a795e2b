"""Does the work of a pipeline's jobs: drives runs in background processes, and evaluates, exports and promotes in this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from flows.pipelines.tools import Tools
from flows.run.home import Home
from flows.soups.evaluation import RewardMeter
from ops.evaluation.answering import evaluate_weights, figures_of, progress_in_tasks, weights_of
from ops.evaluation.rows import figures_on_rows, row_report
from ops.evaluation.suites import evaluated_once, open_for
from ops.integrations.promotion import deliver, promote
from ops.presentation.output import message
from ops.queueing.child_runs import ChildPools, ChildRuns
from ops.terminal.clusters import Clusters
from ops.terminal.exporting import export_checkpoint
from ops.terminal.lookup import opened_checkpoint
from yatt_core.evaluation.suites import load_suite
from yatt_core.evaluation.summary import summarise
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec


def tools_of(home: Home, ledger: Ledger, clusters: Clusters, at_once: int | None, by: str) -> Tools:
    """Returns what does the jobs of a pipeline.

    clusters: what runs are driven on.
    at_once: how many runs are driven at a time; None for as many as the devices hold.
    by: in whose name runs are in the queue, and checkpoints are promoted.
    """

    def drives() -> ChildRuns:
        reward_process().close()  # the checks of a spec may have started it
        return ChildRuns(home=home, ledger=ledger, clusters=clusters, at_once=at_once, by=by)

    def require_devices(spec: RunSpec) -> None:
        ChildPools.of(home, by, at_once).require(spec)

    def evaluate(run: str, iteration: int, suite: Path | None) -> Mapping[str, Any]:
        return _held_out(home, run, iteration) if suite is None else _suite(home, run, iteration, suite)

    def export(run: str, iteration: int, to: Path, dtype: Any) -> None:
        # The next job goes on with all the bits of this one, unless the pipeline says otherwise.
        export_checkpoint(home, run, iteration, to=to, dtype=dtype or "float32")

    def move(run: str, iteration: int, alias: str, why: str) -> int | None:
        done = promote(home, run, alias, iteration, by=by, why=why)
        waits = deliver(home, run) if done.model else None
        if waits:
            message(f"MLflow will be updated later: {waits}")
        return done.approval

    return Tools(
        drives=drives,
        require_devices=require_devices,
        evaluate=evaluate,
        export=export,
        promote=move,
        open_meter=RewardMeter,
        tell=message,
        by=by,
    )


def _held_out(home: Home, run: str, iteration: int) -> dict[str, Any]:
    _, spec, row = opened_checkpoint(home, run, iteration)
    if not spec.samples_responses:
        return figures_on_rows(row_report(place=home, run=run, spec=spec, row=row, model=None))
    weights = weights_of(home, spec, row)
    with progress_in_tasks(f"{run}, {weights.named}") as advance:
        tasks = evaluate_weights(spec, weights, advance)
    return figures_of(summarise(tasks, spec.evaluation))


def _suite(home: Home, run: str, iteration: int, suite: Path) -> Mapping[str, Any]:
    with open_for(home, run, iteration, load_suite(suite)) as opened:
        return evaluated_once(home, opened).figures
