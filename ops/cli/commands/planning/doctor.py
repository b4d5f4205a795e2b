"""`yatt doctor`: checks whether this machine is ready for a run; prints a line per check and a remedy per problem.

Works wherever YATT is installed: libraries, such as torch, Ray and Prefect, are tried in processes of their own.
"""

from __future__ import annotations

from dataclasses import asdict

import typer

from flows.run.home import Home
from ops.preflight.machine import LOOKS
from ops.preflight.verdicts import CheckStatus
from ops.presentation.output import console, write, write_json
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ExitCode

app = typer.Typer()


@app.command(epilog=examples("yatt doctor", "yatt doctor --home /data/runs -o json"))
def doctor(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Check this machine and the home folder; exit code 1 if a run could not work."""
    from rich.progress import track

    screen = console(to_stderr=True)
    looks = track(LOOKS, "looking", console=screen, transient=True, disable=not screen.is_terminal)
    checks = [check for look in looks for check in look(Home.locate(home))]
    if output is Output.JSON:
        write_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            write(f"{check.verdict:<5}{check.name:<18}{check.found}")
            if check.remedy:
                write(f"{'':<5}{'':<18}-> {check.remedy}")
    if any(check.verdict is CheckStatus.FAIL for check in checks):
        raise typer.Exit(ExitCode.FAILURE)
