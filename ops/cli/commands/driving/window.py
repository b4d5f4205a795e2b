"""`yatt window`: begins a window of a deployment at once, on the service group's Prefect server.

Consumes a deployment's name and parameters of the window. Produces a flow run that a worker picks up. It finds the server as
`yatt deploy` does, so that it needs no settings of Prefect in the shell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.output import write, write_json
from ops.terminal.deployment_server import connect_to_server
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "yatt window quickstart",
        "yatt window quickstart --set trainer.optimizer.learning_rate=3e-4 --for 2h",
        "yatt window quickstart --new-run --iterations 50",
    )
)
def window(
    name: Annotated[
        str, typer.Argument(metavar="DEPLOYMENT", help="Name of the deployment, as `yatt deploy` printed it.")
    ],
    overrides: OverridesOption = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="The run's target. Default: as in its spec.")] = None,
    longest: Annotated[
        str | None, typer.Option("--for", help="Maximum length of this window, such as 8h. Default: the deployment's.")
    ] = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="Start a new run from the run's spec, instead of continuing the run.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Begin a window of a deployment at once, in addition to its schedule, with other parameters if you like.

    A change of the spec becomes a new revision of the run's, as after `yatt resume --set`, or is that of the new run.
    """
    from flows.schedule.parameters import NEW, WindowParameters

    given: dict[str, Any] = {"overrides": _overrides(overrides or ())} if overrides else {}
    given |= {} if iterations is None else {"iterations": iterations}
    given |= {} if longest is None else {"window": longest}
    given |= {"run": NEW} if new_run else {}
    WindowParameters(**given).plan()
    place = Home.locate(home)
    connect_to_server(place, wanted=True)
    from flows.schedule import deployments
    from ops.scheduled import window as flow

    began = deployments.begin(name.removeprefix(f"{flow.name}/"), flow, given)
    if output is Output.JSON:
        write_json({"deployment": name, "flow_run": began, "parameters": given})
        return
    write(f"a window of {name} begins as flow run {began} once a worker takes it; `yatt runs` shows the run")


def _overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the changes of a spec by dotted key. Raises `ConfigurationError` for one that cannot be read."""
    from yatt_core.spec.reading.layers import Override

    parsed = [Override.parse(text) for text in texts]
    return {".".join(each.keys): each.value for each in parsed}
