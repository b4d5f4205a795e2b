"""`yatt pipeline`: carries a pipeline of jobs to its end, from supervised training to promotion.

Consumes a pipeline's file, or the id of one of its runs; writes steps to standard error, and a table or one JSON object to
standard output.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from db.core.errors import PipelineNotFound
from flows.run.home import Home
from ops.pipelines import backfill, deploy
from ops.pipelines.arguments import FileArgument, PipelineArgument
from ops.presentation.output import write, write_json, write_list
from ops.process import keep_caches_inside
from ops.terminal.lookup import LATEST, opened_ledger
from ops.terminal.options import AtOnceOption, HomeOption, Output, OutputOption, examples
from ops.terminal.people import acting_name
from yatt_core.errors import InfrastructureError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from ops.pipelines.view import PipelineView

RUN = ("yatt pipeline run examples/pipeline/pipeline.yaml", "yatt pipeline run pipeline.yaml --at-once 2 -o json")
RESUME = ("yatt pipeline resume latest", "yatt pipeline resume letters-1 -o json")
SHOW = ("yatt pipeline show latest", "yatt pipeline show letters-1 -o json")
LIST = ("yatt pipeline list", "yatt pipeline list -o json")
app = typer.Typer(
    name="pipeline",
    epilog=examples(RUN[0], SHOW[0], RESUME[0]),
    no_args_is_help=True,
    help="Run jobs that need each other, from supervised training to promotion; what has not changed is skipped.",
)
app.add_typer(deploy.app)
app.add_typer(backfill.app)


@app.command(epilog=examples(*RUN))
def run(
    file: FileArgument, at_once: AtOnceOption = None, home: HomeOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Run a pipeline until it is finished or waits for people; an unfinished run of the same file goes on.

    Jobs whose settings, files and inputs are those of an earlier run are skipped.
    """
    from flows.driver import services
    from flows.pipelines.checks import checked_pipeline
    from flows.pipelines.record import start_pipeline
    from ops.group.address import server_of_runs
    from ops.queueing.child_runs import require_at_once

    place = Home.locate(home)
    spec = checked_pipeline(file)
    require_at_once(place, at_once)
    services.check_surroundings(server_of_runs(place))
    row = start_pipeline(place, spec, file.parent, acting_name())
    _carry_on(place, row.id, at_once, output)


@app.command(epilog=examples(*RESUME))
def resume(
    pipeline: PipelineArgument,
    at_once: AtOnceOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Carry a pipeline on after an approval, a failure or a kill; jobs that are done are not repeated."""
    from ops.queueing.child_runs import require_at_once

    place = Home.locate(home)
    require_at_once(place, at_once)
    with opened_ledger(place) as ledger:
        name = _find(ledger, pipeline)
    _carry_on(place, name, at_once, output)


@app.command(epilog=examples(*SHOW))
def show(pipeline: PipelineArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show a pipeline's jobs: how each stands, with its run, its approval and, as JSON, its inputs and outputs."""
    from ops.pipelines.view import pipeline_view

    with opened_ledger(Home.locate(home)) as ledger:
        _print(pipeline_view(ledger, _find(ledger, pipeline)), output)


@app.command("list", epilog=examples(*LIST))
def list_pipelines(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the newest runs of pipelines."""
    from ops.pipelines.view import PIPELINES, pipeline_list

    with opened_ledger(Home.locate(home)) as ledger:
        found = pipeline_list(ledger)
    if output is Output.JSON:
        write_json({"pipelines": [asdict(view) for view in found]})
        return
    write_list(PIPELINES, found)


def _find(ledger: Ledger, name: str) -> str:
    """Returns the id of a run of a pipeline, for `latest` the newest. Raises `PipelineNotFound`."""
    if name != LATEST:
        return ledger.pipelines.find(name).id
    newest = ledger.pipelines.newest(limit=1)
    if not newest:
        raise PipelineNotFound("there are no pipelines in this ledger yet; start one with `yatt pipeline run FILE`")
    return newest[0].id


def _carry_on(home: Home, pipeline: str, at_once: int | None, output: Output) -> None:
    """Takes all steps of a pipeline that can be taken now, and shows it."""
    from db.write.pipelines import FAILED
    from flows.pipelines.flow import drive_pipeline
    from flows.pipelines.runner import PipelineRunner
    from ops.group.address import server_of_runs
    from ops.pipelines.view import pipeline_view
    from ops.pipelines.work import tools_of
    from ops.terminal.clusters import Clusters

    keep_caches_inside(home)
    with opened_ledger(home) as ledger, Clusters(home) as clusters:
        tools = tools_of(home=home, ledger=ledger, clusters=clusters, at_once=at_once, by=acting_name())
        state = drive_pipeline(
            lambda run_step: PipelineRunner(
                home=home, ledger=ledger, pipeline=pipeline, tools=tools, run_step=run_step
            ).run(),
            pipeline,
            home.pipelines / pipeline,
            server_of_runs(home),
        )
        view = pipeline_view(ledger, pipeline)
    _print(view, output)
    if state == FAILED:
        raise InfrastructureError(f"pipeline {pipeline}: {view.reason}; `yatt pipeline resume {pipeline}` tries again")


def _headline(view: PipelineView) -> str:
    """Returns how a pipeline stands, and why unless the table of its jobs says so."""
    from db.write.pipelines import FAILED

    told = "; ".join(f"{job.name}: {job.reason}" for job in view.jobs if job.state == FAILED)
    if view.interrupted:
        return f"{view.pipeline}: {view.standing}; {view.why}"
    return f"{view.pipeline}: {view.state}{f' ({view.reason})' if view.reason not in ('', told) else ''}"


def _print(view: PipelineView, output: Output) -> None:
    from ops.pipelines.view import JOBS

    if output is Output.JSON:
        write_json(asdict(view))
        return
    write(_headline(view))
    for title, told in (("began because", view.began_by), ("runs again because", view.remembered)):
        if told:
            write(f"{title}: {'; '.join(told)}")
    write_list(JOBS, view.jobs)
