"""`yatt sweep`: tries settings of a run's spec side by side, stops weak ones early, and names the best.

Consumes a spec and the keys that vary, or the name of a sweep; writes steps to standard error, and a table or one JSON object to
standard output.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from flows.run.home import Home
from ops.presentation.output import message, write_json
from ops.process import keep_caches_inside
from ops.sweeps.tables import print_sweep
from ops.terminal.completion import complete_spec
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_record, opened_ledger
from ops.terminal.options import AtOnceOption, HomeOption, Output, OutputOption, OverridesOption, examples
from ops.terminal.people import acting_name
from yatt_core.durable import refusals
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.ledger import Ledger

HELP = ("-h", "--help")


class SpecFirst(TyperGroup):
    """Takes `sweep SPEC ...` as `sweep run SPEC ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts `run` before anything that is no command."""
        named = not args or args[0] in HELP or args[0] in self.commands
        return super().parse_args(ctx, args if named else ["run", *args])


SpecArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC",
        help="Spec of a run, or of a sweep with the keys `base` and `space`, in YAML.",
        autocompletion=complete_spec,
    ),
]
SweepArgument = Annotated[
    str, typer.Argument(metavar="SWEEP", help="Id of the sweep's first run, or of any other of its runs; or `latest`.")
]
OverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="A key that varies: KEY=A,B,C to choose from, or KEY=LOW..HIGH, with :log for a log scale and :N for a grid.",
    ),
]
ToOption = Annotated[
    Path | None,
    typer.Option("--to", metavar="FILE", help="Write the winner's spec to this file, which must not exist."),
]

RUN = (
    "yatt sweep configs/quickstart.yaml --asha --over trainer.optimizer.learning_rate=1e-4..1e-2:log "
    "--over rollout.temperature=0.7,1.0",
    "yatt sweep configs/quickstart.yaml --grid --over rollout.temperature=0.5,0.7,1.0 --seeds 0,1,2",
    "yatt sweep examples/sweep/sweep.yaml --trials 8 --at-once 1 --to winner.yaml",
)
RESUME = ("yatt sweep resume latest", "yatt sweep resume quickstart-1 -o json")
SHOW = (
    "yatt sweep show latest",
    "yatt sweep show quickstart-1 --out plot.png",
    "yatt sweep show latest --to winner.yaml",
)
app = typer.Typer(
    name="sweep",
    epilog=examples(*RUN, SHOW[0], RESUME[0]),
    cls=SpecFirst,
    no_args_is_help=True,
    help="Try settings of a spec side by side, stop weak ones early, and name the best. `yatt sweep SPEC` starts one.",
)


@app.command(epilog=examples(*RUN))
def run(
    spec: SpecArgument,
    over: OverOption = None,
    grid: Annotated[bool, typer.Option("--grid", help="Try all combinations of the values.")] = False,
    random: Annotated[bool, typer.Option("--random", help="Try random settings.")] = False,
    asha: Annotated[bool, typer.Option("--asha", help="Stop weak trials early; also with --grid or --random.")] = False,
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of trials. Default: the whole grid, or 16.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Seeds of each trial; the mean over them decides.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare trials by this metric. Default: evaluation/accuracy.")
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="The smallest value is the best.")] = False,
    reduction: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="With --asha, one of N goes on, to N times the iterations.")
    ] = None,
    first_rung: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="With --asha, compare no trial before this iteration.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trials under way when the next decision is made. Default: 4."),
    ] = None,
    overrides: OverridesOption = None,
    at_once: AtOnceOption = None,
    to: ToOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a sweep and carry it to its end; Ctrl-C stops its runs in order, and `yatt sweep resume` goes on.

    Without --grid and --random, Optuna's estimator proposes settings and learns from the trials before.
    """
    from flows.driver import services
    from flows.sweeps.record import create_sweep
    from flows.sweeps.spec import load_sweep
    from ops.group.address import server_of_runs
    from ops.preflight.run import check_before_start
    from ops.queueing.child_runs import ChildPools

    given: dict[str, Any] = {"trials": trials, "metric": metric, "workers": workers, "space": _space(over or ())}
    given |= {"sampler": _sampler(grid, random), "seeds": None if seeds is None else _whole_numbers(seeds)}
    given |= {"goal": "minimize" if minimize else None}
    halving = {"reduction": reduction, "first_rung": first_rung}
    if asha or any(halving.values()):
        given["asha"] = {key: value for key, value in halving.items() if value is not None}
    options = {key: value for key, value in given.items() if value is not None}
    sweep, checked = load_sweep(spec, options, overrides or ())
    _require_new(to)
    place = Home.locate(home)
    ChildPools.of(place, acting_name(), at_once).require(checked)
    checked = fetched(place.folder, checked, weights=False)
    for warning in check_before_start(place.folder, checked).warnings:
        message(f"warning: {warning}")
    services.check_surroundings(server_of_runs(place))
    _carry_on(
        home=place, sweep=create_sweep(place, sweep, checked, acting_name()), at_once=at_once, to=to, output=output
    )


@app.command(epilog=examples(*RESUME))
def resume(
    sweep: SweepArgument,
    at_once: AtOnceOption = None,
    to: ToOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Carry a sweep on after a stop, a failure or a kill; it decides as if nothing had happened."""
    _require_new(to)
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = _find(ledger, sweep)
    _carry_on(home=place, sweep=name, at_once=at_once, to=to, output=output)


@app.command(epilog=examples(*SHOW))
def show(
    sweep: SweepArgument,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw parallel coordinates into this PNG; needs matplotlib."),
    ] = None,
    to: ToOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a sweep's trials with their values, its cost, and the best setting."""
    from ops.sweeps.picture import write_coordinates
    from ops.sweeps.view import sweep_view

    _require_new(to)
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        view = sweep_view(ledger, _find(ledger, sweep))
        if to is not None:
            _write_winner(ledger, view.sweep, to)
    if out is not None:
        keep_caches_inside(place)
        write_coordinates(view, out)
        message(f"{out}: the trials of {view.sweep}")
    _print(view, output)


def _space(texts: tuple[str, ...] | list[str]) -> dict[str, Any]:
    from flows.sweeps.space import parse_dimension

    return dict(parse_dimension(text) for text in texts)


def _sampler(grid: bool, random: bool) -> str | None:
    if grid and random:
        raise ConfigurationError("--grid and --random: give one of them; each can be combined with --asha")
    return "grid" if grid else "random" if random else None


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"--seeds {text}: expected whole numbers separated by commas, such as 0,1,2") from None


def _require_new(to: Path | None) -> None:
    if to is not None and to.exists():
        raise ConfigurationError(f"--to {to}: already exists; name a file that does not exist yet")


def _find(ledger: Ledger, name: str) -> str:
    """Returns the sweep of a run, or the newest sweep."""
    from flows.sweeps.record import SWEEP

    return find_record(ledger, SWEEP, name)


def _carry_on(home: Home, sweep: str, at_once: int | None, to: Path | None, output: Output) -> None:
    """Takes all steps of a sweep that are left, and shows it."""
    from flows.sweeps.runner import SweepRunner
    from ops.queueing.child_runs import ChildRuns
    from ops.sweeps.view import sweep_view
    from ops.terminal.clusters import Clusters
    from yatt_core.rewards.process import reward_process

    reward_process().close()  # the checks before the start may have started it
    keep_caches_inside(home)
    with opened_ledger(home) as ledger, Clusters(home) as clusters:
        drives = ChildRuns(home=home, ledger=ledger, clusters=clusters, at_once=at_once, by=acting_name())
        SweepRunner(home=home, ledger=ledger, sweep=sweep, drive=drives, tell=message).run()
        if to is not None:
            _write_winner(ledger, sweep, to)
        _print(sweep_view(ledger, sweep), output)


def _write_winner(ledger: Ledger, sweep: str, to: Path) -> None:
    from ops.sweeps.view import winner_spec
    from yatt_core.spec.reading.documents import yaml_text

    text = yaml_text(winner_spec(ledger, sweep).model_dump(mode="json"))
    with refusals(f"--to {to}: cannot be written"):
        to.write_text(text, encoding="utf-8")
    message(f"{to}: the spec of the best trial; `yatt train {to}` runs it")


def _print(view: Any, output: Output) -> None:
    if output is Output.JSON:
        write_json(asdict(view))
    else:
        print_sweep(view)
