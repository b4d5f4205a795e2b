"""`yatt soup`: trains backbones on mixed rewards, and merges models for any preference between objectives (Bone Soup).

Consumes a soup's spec, or a soup's name; writes steps to standard error, and tables or one JSON object to standard output.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from flows.soups.mixing import check_preference
from ops.presentation.output import message, write, write_json
from ops.process import keep_caches_inside
from ops.soups.tables import print_soup
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_record, opened_checkpoint, opened_ledger
from ops.terminal.options import AtOnceOption, HomeOption, Output, OutputOption, OverridesOption, examples
from ops.terminal.people import acting_name
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.soups.merged_runs import MergedRun
    from yatt_core.spec import RunSpec


SoupSpecArgument = Annotated[
    Path, typer.Argument(metavar="SPEC", help="Spec of a soup in YAML, which names the spec of its runs.")
]
SoupArgument = Annotated[
    str,
    typer.Argument(metavar="SOUP", help="Id of the soup's supervised run, or of any other of its runs; or `latest`."),
]
RUN = ("yatt soup run examples/soup/soup.yaml", "yatt soup run examples/soup/soup.yaml --set iterations=40 --at-once 1")
RESUME = ("yatt soup resume latest", "yatt soup resume polite-1 -o json")
SHOW = ("yatt soup show latest", "yatt soup show polite-1 --out front.png")
MERGE = (
    "yatt soup merge latest --preference 0.7,0.3",
    "yatt soup merge polite-1 --preference 0.2,0.8 --to models/brief --extrapolation 0.2",
)
app = typer.Typer(
    name="soup",
    epilog=examples(RUN[0], SHOW[0], MERGE[0]),
    no_args_is_help=True,
    help="Train one model per objective on mixed rewards, and merge them for any preference (Bone Soup, arXiv 2502.10762).",
)


@app.command(epilog=examples(*RUN))
def run(
    spec: SoupSpecArgument,
    overrides: OverridesOption = None,
    at_once: AtOnceOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a soup and carry it to its end; Ctrl-C stops its runs in order, and `yatt soup resume` goes on."""
    from flows.driver import services
    from flows.soups.record import create_soup
    from flows.soups.spec import load_soup
    from ops.group.address import server_of_runs
    from ops.preflight.run import check_before_start
    from ops.queueing.child_runs import ChildPools

    soup, checked = load_soup(spec, overrides or ())
    place = Home.locate(home)
    ChildPools.of(place, acting_name(), at_once).require(checked)
    checked = fetched(place.folder, checked, weights=False)
    for warning in check_before_start(place.folder, checked).warnings:
        message(f"warning: {warning}")
    services.check_surroundings(server_of_runs(place))
    _carry_on(place, create_soup(place, soup, checked, acting_name()), at_once, output)


@app.command(epilog=examples(*RESUME))
def resume(
    soup: SoupArgument, at_once: AtOnceOption = None, home: HomeOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Carry a soup on after a stop, a failure or a kill; finished runs and measurements are not repeated."""
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = _find(ledger, soup)
    _carry_on(place, name, at_once, output)


@app.command(epilog=examples(*SHOW))
def show(
    soup: SoupArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the fronts into this PNG; needs matplotlib.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a soup's runs, the rewards of its merged models beside Rewarded Soup's, and its figures."""
    from ops.soups.picture import write_fronts
    from ops.soups.view import soup_view

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        view = soup_view(ledger, _find(ledger, soup))
    if out is not None:
        keep_caches_inside(place)
        write_fronts(view, out)
        message(f"{out}: the fronts of {view.soup}")
    _print(view, output)


@app.command(epilog=examples(*MERGE))
def merge(
    soup: SoupArgument,
    preference: Annotated[
        str, typer.Option(metavar="A,B,...", help="Weight of each objective, from 0 to 1 with sum 1, such as 0.7,0.3.")
    ],
    extrapolation: Annotated[
        float,
        typer.Option(metavar="ALPHA", min=0.0, max=1.0, help="Move away from the supervised model by this factor."),
    ] = 0.0,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Also export it to this folder, which must not exist."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merge a soup's backbones for a preference into a new run, which can be evaluated, exported, promoted and trained on.

    Weights are added up block by block in float32, so that it needs little memory. `yatt lineage` shows the parents.
    """
    from flows.soups.merged_runs import merge_run
    from flows.soups.record import SoupRecord

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = _find(ledger, soup)
        objectives = SoupRecord.of(ledger, name).spec.objectives
    chosen = check_preference(_numbers(preference), objectives, "--preference")
    if to is not None:
        _require_new(to)
    made = merge_run(place, name, chosen, extrapolation)
    folder = None if to is None else _export(place, made, to)
    if output is Output.JSON:
        write_json({**asdict(made), "folder": folder})
        return
    parents = ", ".join(f"{each['coefficient']:+.3f} x {each['run']}" for each in made.parents)
    write(f"{made.run}: {parents}")
    if folder is not None:
        write(f"{folder}: its model as a Hugging Face folder")


def _find(ledger: Ledger, name: str) -> str:
    """Returns the soup of a run, or the newest soup."""
    from flows.soups.record import SOUP

    return find_record(ledger, SOUP, name)


def _carry_on(home: Home, soup: str, at_once: int | None, output: Output) -> None:
    """Takes all steps of a soup that are left, and shows it."""
    from flows.soups.runner import SoupRunner
    from ops.queueing.child_runs import ChildRuns
    from ops.soups.view import soup_view
    from ops.terminal.clusters import Clusters
    from yatt_core.rewards.process import reward_process

    reward_process().close()  # the checks before the start may have started it
    keep_caches_inside(home)
    with opened_ledger(home) as ledger, Clusters(home) as clusters:
        drives = ChildRuns(home=home, ledger=ledger, clusters=clusters, at_once=at_once, by=acting_name())
        SoupRunner(home=home, ledger=ledger, soup=soup, drive=drives, open_meter=_open_meter, tell=message).run()
        _print(soup_view(ledger, soup), output)


def _open_meter(spec: RunSpec, run: str, folder: Path, samples: int) -> Any:
    from flows.soups.evaluation import RewardMeter

    return RewardMeter(spec, run, folder, samples)


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"--preference {text}: expected numbers separated by commas, such as 0.7,0.3"
        ) from None


def _require_new(folder: Path) -> None:
    if folder.exists():
        raise ConfigurationError(f"--to {folder}: already exists; name a folder that does not exist yet")


def _export(home: Home, made: MergedRun, to: Path) -> str:
    from yatt_core.checkpoints.export import export_model
    from yatt_core.checkpoints.publish import CheckpointIdentity
    from yatt_core.checkpoints.verify import verify_checkpoint
    from yatt_core.input_building.materialise import initial_model

    _, spec, row = opened_checkpoint(home, made.run, 0)
    folder = home.run_folder(row.run)
    identity = CheckpointIdentity(**verify_checkpoint(folder, row.folder, row.manifest_sha256).fields)
    export_model(folder / row.folder, Path(initial_model(spec, folder)), to, identity)
    return str(to.resolve())


def _print(view: Any, output: Output) -> None:
    if output is Output.JSON:
        write_json(asdict(view))
    else:
        print_soup(view)
