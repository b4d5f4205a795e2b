"""`yatt pipeline backfill`: evaluates all kept checkpoints of a run on a suite, or has new judges score them.

Consumes a run, a suite's file, or judges of a run's spec. Produces rows of the run's history; what was evaluated before is not
repeated, so that the command may be killed and called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.run.home import Home
from ops.evaluation import suites
from ops.evaluation.suites import OpenedSuite, open_for, open_held_out_for
from ops.presentation.output import message, write_json, write_list
from ops.process import keep_caches_inside
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from yatt_core.evaluation.panel import PanelSpec
    from yatt_core.spec.rewards.judges import GenerativePart

    OpenAt = Callable[[int], AbstractContextManager[OpenedSuite]]

app = typer.Typer()

LINES = (
    "yatt pipeline backfill latest --suite suites/math.yaml",
    "yatt pipeline backfill quickstart-1 --rejudge judges.yaml/strict --rejudge judges.yaml/kind -o json",
    "yatt pipeline backfill quickstart-1 --suite suites/math.yaml --rejudge judges.yaml/strict --combine majority",
)


@app.command(epilog=examples(*LINES))
def backfill(
    run: RunArgument,
    suite: Annotated[
        Path | None,
        typer.Option("--suite", metavar="SUITE", help="The suite's file, in YAML. Default: the run's held-out tasks."),
    ] = None,
    rejudge: Annotated[
        list[str] | None,
        typer.Option(
            "--rejudge",
            metavar="SPEC/JUDGE",
            help="A generative judge in `rewards.parts` of a run's spec, in place of the suite's judges; may be repeated.",
        ),
    ] = None,
    combine: Annotated[
        Literal["mean", "majority"] | None,
        typer.Option("--combine", help="How the values of several judges become one. Default: mean."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Evaluate all kept checkpoints of a run, oldest first, on a suite, or with new judges; nothing is evaluated twice.

    New judges score the answers to the suite, or to the run's held-out tasks. Answers are generated again with the same seeds.
    """
    from ops.evaluation.view import FIGURES
    from yatt_core.evaluation.suites import load_suite

    if suite is None and not rejudge:
        raise ConfigurationError("--suite or --rejudge: give at least one, such as --suite suites/math.yaml")
    if combine and not rejudge:
        raise ConfigurationError("--combine: needs --rejudge; a suite says itself how its judges are combined")
    place = Home.locate(home)
    panel = _panel(rejudge or (), combine or "mean")
    open_at: OpenAt
    keep_caches_inside(place)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
    iterations = sorted(_kept(place, name))
    if suite is None:
        assert panel is not None, "the options were checked"
        open_at = partial(open_held_out_for, place, name, panel=panel)
    else:
        wanted = load_suite(suite)
        wanted = wanted if panel is None else wanted.model_copy(update={"judges": panel})
        open_at = partial(open_for, place, name, wanted=wanted)
    rows = []
    for iteration in iterations:
        if iteration not in _kept(place, name):
            message(f"iteration {iteration} is left out: its checkpoint was pruned meanwhile")
            continue
        with open_at(iteration) as opened:
            rows.append(suites.evaluated_once(place, opened))
    if output is Output.JSON:
        found = [{"iteration": row.iteration, "number": row.number, "figures": row.figures} for row in rows]
        write_json({"run": name, "suite": rows[0].suite if rows else None, "evaluations": found})
        return
    title = rows[0].suite if rows else f"{name} has no kept checkpoint"
    write_list(FIGURES, rows, title)


def _kept(home: Home, run: str) -> set[int]:
    """Returns the iterations whose checkpoints are kept at this moment."""
    with opened_ledger(home) as ledger:
        return {row.iteration for row in ledger.records.checkpoints(run)}


def _panel(names: Sequence[str], combine: str) -> PanelSpec | None:
    from yatt_core.evaluation.panel import PanelSpec
    from yatt_core.spec.reading.mistakes import parse_model

    if not names:
        return None
    parts = [_judge(name).model_dump(mode="json") for name in names]
    return parse_model(PanelSpec, {"parts": parts, "combine": combine}, "--rejudge")


def _judge(name: str) -> GenerativePart:
    """Returns the judge that an option names. Raises `ConfigurationError`."""
    from yatt_core.spec import load_spec
    from yatt_core.spec.rewards.judges import GenerativePart

    file, _, judge = name.rpartition("/")
    if not Path(file).is_file():
        missing = f"; there is no file {file}" if file else ""
        raise ConfigurationError(f"--rejudge {name}: expected SPEC/JUDGE, such as judges.yaml/strict{missing}")
    parts = load_spec(Path(file), (), with_files=True).rewards.judges
    found = next((part for part in parts if part.name == judge), None)
    if not isinstance(found, GenerativePart):
        known = ", ".join(part.name for part in parts if isinstance(part, GenerativePart)) or "none"
        raise ConfigurationError(f"--rejudge: {file} has no generative judge {judge!r}; known: {known}")
    return found
