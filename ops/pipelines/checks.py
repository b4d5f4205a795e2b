"""The flow that workers start for a pipeline that `yatt pipeline deploy` has deployed.

Its module path is the entrypoint of every such deployment, so its name must not change.
"""

from __future__ import annotations

from pathlib import Path

from db.ledger import Ledger
from flows.pipelines.deployed_checks import check_flow, check_pipeline
from flows.pipelines.runner import PipelineRunner, RunStep
from flows.run.home import Home
from flows.schedule.window_start import Ending
from ops.pipelines.work import tools_of
from ops.process import keep_caches_inside
from ops.terminal.clusters import Clusters


@check_flow
def check(*, pipeline: str, home: str) -> Ending:
    """Checks what begins a pipeline, and drives it.

    Args:
        pipeline: The pipeline's name. Set by `yatt pipeline deploy`; leave it unchanged.
        home: The folder of runs. Set by `yatt pipeline deploy`; leave it unchanged.

    """
    place = Home(Path(home))
    keep_caches_inside(place)

    def drive(ledger: Ledger, number: str, run_step: RunStep) -> str:
        by = ledger.pipeline_triggers.deployment(pipeline).by
        with Clusters(place) as clusters:
            tools = tools_of(home=place, ledger=ledger, clusters=clusters, at_once=None, by=by)
            return PipelineRunner(home=place, ledger=ledger, pipeline=number, tools=tools, run_step=run_step).run()

    return check_pipeline(place, pipeline, drive)
