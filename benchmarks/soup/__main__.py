"""Does Bone Soup follow preferences, and does it reach at least the front of Rewarded Soup?

Carries soups of two and three conflicting objectives (`examples/soup`), for several seeds each, from supervised fine-tuning to
the measured grid: the product's own plan, forks, merges and measurements, with training in this process instead of under Ray.
Per number of objectives N:

    kendall_tau_N          Kendall's tau-b between an objective's weight and its reward on 500 held-out prompts, over the 11
                           preferences of its line of the grid; mean over the objectives and the seeds
    hypervolume_ratio_N    the soup's hypervolume over Rewarded Soup's: the same grid, the same iterations for each backbone
                           and each single run, over the lowest rewards of both; mean over the seeds
    search_iterations_N    iterations of the search for beta that no backbone uses, in addition, as a fraction of the backbones'

A home that is given keeps its soups: a benchmark that was interrupted goes on where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.local_runs import LocalRuns
from db.ledger import Ledger
from flows.run.home import Home
from flows.soups.evaluation import RewardMeter
from flows.soups.record import SOUP, SoupRecord, create_soup
from flows.soups.runner import SoupRunner
from flows.soups.spec import SoupSpec
from ops.soups.view import SoupView, soup_view
from yatt_core.spec import load_spec

RUNS = Path(__file__).parents[2] / "examples" / "soup" / "runs.yaml"
OBJECTIVES = {2: ("echo", "vowels"), 3: ("echo", "vowels", "fresh")}
HELD_OUT = 500


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--objectives", type=int, nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--iterations", type=int, help="iterations of each run; by default those of the example")
    parser.add_argument("--home", type=Path, help="a home folder that is kept; by default a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before = load_average()
    if arguments.home is None:
        with tempfile.TemporaryDirectory() as folder:
            views = _views(Home(Path(folder).resolve()), arguments)
    else:
        views = _views(Home(arguments.home.resolve()), arguments)
    report = Report(
        name="soup",
        figures=_figures(views),
        seeds=arguments.seeds,
        load=[before, load_average()],
        baselines=_baselines(views),
        details=_details(views),
    )
    print_report(report, arguments.json)


Views = Mapping[int, Sequence[SoupView]]


def _views(home: Home, arguments: Any) -> Views:
    return {
        count: [_soup(home, count, seed, arguments.iterations) for seed in arguments.seeds]
        for count in arguments.objectives
    }


def _soup(home: Home, count: int, seed: int, iterations: int | None) -> SoupView:
    """Returns a finished soup."""
    name = f"soup-of-{count}-seed-{seed}"
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        known = [soup for soup in SOUP.records(ledger) if SoupRecord(ledger, soup).spec.name == name]
        soup = known[0] if known else _create(home=home, name=name, count=count, seed=seed, iterations=iterations)
        runs = LocalRuns(home, ledger)
        SoupRunner(home=home, ledger=ledger, soup=soup, drive=runs, open_meter=RewardMeter, tell=progress).run()
        return soup_view(ledger, soup)


def _create(home: Home, name: str, count: int, seed: int, iterations: int | None) -> str:
    changes = [f"name={name}", f"seed={seed}", f"data.held_out={HELD_OUT}", "tracking.enabled=false"]
    changes += [] if iterations is None else [f"iterations={iterations}"]
    soup = SoupSpec(name=name, base=str(RUNS), objectives=OBJECTIVES[count])
    return create_soup(home, soup, load_spec(RUNS, changes), "benchmarks.soup")


def _figures(views: Views) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for count, found in views.items():
        ratios = [view.hypervolume_ratio for view in found if view.hypervolume_ratio is not None]
        figures[f"kendall_tau_{count}"] = fmean(view.soups[0].mean_tau for view in found)
        figures[f"hypervolume_ratio_{count}"] = fmean(ratios) if len(ratios) == len(found) else None
        figures[f"search_iterations_{count}"] = fmean(_searched(view) for view in found)
    return figures


def _searched(view: SoupView) -> float:
    """Returns the iterations of candidates that were not chosen, as a fraction of the backbones'."""
    others = [member for member in view.members if member.beta not in (None, 1.0, view.beta)]
    return len(others) * view.search_at / (len(view.objectives) * view.target)


def _baselines(views: Views) -> dict[str, Any]:
    return {
        f"kendall_tau_{count}_rewarded_soup": fmean(view.soups[1].mean_tau for view in found)
        for count, found in views.items()
    }


def _details(views: Views) -> dict[str, Any]:
    return {view.soup: asdict(view) for found in views.values() for view in found}


if __name__ == "__main__":
    main()
