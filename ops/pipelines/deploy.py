"""`yatt pipeline deploy`: has the service group begin a pipeline by its triggers.

Consumes a pipeline's file with `triggers`. Produces a row of the ledger with what the triggers see now, and a deployment on
Prefect's server, whose flow runs check the triggers. Errors in the file are reported before anything is written.
If the server fails afterwards, deploy again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from flows.driver.windows import moment_text, parse_duration
from flows.run.home import Home
from ops.pipelines.arguments import FileArgument
from ops.presentation.output import write, write_json
from ops.terminal.deployment_server import connect_to_server
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from ops.terminal.people import acting_name
from yatt_core.errors import ConfigurationError

app = typer.Typer()

SHORTEST = timedelta(seconds=10)
SHOWN_STARTS = 3
LINES = (
    "yatt pipeline deploy examples/pipeline/pipeline.yaml",
    "yatt pipeline deploy pipeline.yaml --every 5m -o json",
)


@app.command(epilog=examples(*LINES))
def deploy(
    file: FileArgument,
    every: Annotated[
        str, typer.Option("--every", help="Time between two checks of the triggers, at least 10s, such as 5m.")
    ] = "1m",
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Begin a pipeline by the triggers in its file, and carry it on after approvals, as long as `yatt up` serves it.

    What the triggers see now is where they start from. Deploying a pipeline again replaces its file and its schedule.
    """
    from db.ledger import Ledger
    from flows.pipelines.checks import checked_pipeline
    from flows.pipelines.spec import require_triggers

    place = Home.locate(home)
    interval = parse_duration(every, "--every")
    if interval < SHORTEST:
        raise ConfigurationError(f"--every: {every} is too short; expected at least {SHORTEST.seconds}s")
    require_triggers(checked_pipeline(file), file)
    connect_to_server(place, wanted=True)
    from flows.pipelines.conditions import schedules_of
    from flows.pipelines.deployed_checks import deploy_checks
    from flows.pipelines.polling import deploy_pipeline
    from flows.schedule.schedule_times import upcoming
    from ops.pipelines.checks import check

    place.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(place.ledger) as ledger:
        spec = deploy_pipeline(ledger, file, acting_name())
    schedules = schedules_of(spec, file)
    name = deploy_checks(home=place, pipeline=spec.name, schedules=schedules, every=interval, check=check)
    starts = sorted(start for each in schedules for start in upcoming(each, datetime.now(UTC), SHOWN_STARTS))[
        :SHOWN_STARTS
    ]
    if output is Output.JSON:
        triggers = [trigger.model_dump(mode="json") for trigger in spec.triggers]
        write_json({"deployment": name, "triggers": triggers, "starts": [start.isoformat() for start in starts]})
        return
    write(f"a worker of `yatt up` checks {name} every {every}; triggers:")
    for trigger in spec.triggers:
        settings = trigger.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
        write(f"  {trigger.kind}: " + ", ".join(f"{key} {value}" for key, value in settings.items()))
    if starts:
        write("first starts: " + "; ".join(map(moment_text, starts)))
    write(f"to end this: prefect deployment delete {name}")
