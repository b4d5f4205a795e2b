"""`yatt evaluate --suite` and `yatt evaluations`: a checkpoint on a suite of held-out sets, and the history of a run's suites.

Consumes a suite's YAML file and a kept checkpoint, which its digest pins. Produces a row of the ledger; the same weights on the
same suite are evaluated once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.evaluation.answering import evaluate_weights, figures_of, progress_in_tasks, weights_of
from ops.evaluation.words import estimates_of, worse_text
from ops.presentation.output import message, write, write_json, write_list
from ops.terminal.lookup import find_run, opened_checkpoint, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.terminal.people import named
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.write.records import CheckpointRow
    from db.write.suites import SuiteRow
    from yatt_core.evaluation.panel import PanelScores, PanelSpec
    from yatt_core.evaluation.suites import Suite, SuiteSpec
    from yatt_core.evaluation.summary import Summary
    from yatt_core.spec import RunSpec

app = typer.Typer()


def refuse_with_suite(model: Path | None, greedy: bool, given: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for options that contradict `--suite`, which says itself how its tasks are answered."""
    named_options = [*(["model"] if model else []), *(["greedy"] if greedy else []), *given]
    if named_options:
        options = ", ".join("--" + key.replace("_", "-") for key in named_options)
        raise ConfigurationError(
            f"--suite and {options}: a suite says itself how a checkpoint's answers are sampled; give only --suite"
        )


@dataclass(frozen=True, slots=True)
class OpenedSuite:
    """A suite and the checkpoint that answers it.

    media: folder of the tasks' images.
    """

    run: str
    spec: RunSpec
    row: CheckpointRow
    suite: Suite
    media: Path


@contextmanager
def open_for(home: Home, run: str, iteration: int | None, wanted: SuiteSpec) -> Iterator[OpenedSuite]:
    """Opens a kept checkpoint of a run, by default the newest, and the tasks of a suite for it."""
    from flows.run.repositories import with_repositories
    from yatt_core.evaluation.suites import open_suite
    from yatt_core.prompts.media import MediaFolder

    name, spec, row = opened_checkpoint(home, run, iteration)
    if not spec.has.language_model:
        raise ConfigurationError(
            f"--suite: run {name} has workload.kind {spec.workload.title}, which answers no tasks; leave it out, and the "
            "workload evaluates itself"
        )
    fetched = with_repositories(home.folder, wanted)
    with TemporaryDirectory() as folder:
        suite = open_suite(fetched, spec, MediaFolder(Path(folder)).keep)
        yield OpenedSuite(run=name, spec=spec, row=row, suite=suite, media=Path(folder))


@contextmanager
def open_held_out_for(home: Home, run: str, iteration: int, panel: PanelSpec) -> Iterator[OpenedSuite]:
    """Opens a kept checkpoint of a run, and the run's held-out tasks with judges."""
    from yatt_core.evaluation.suites import open_held_out
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.inputs.reader import Inputs

    name, spec, row = opened_checkpoint(home, run, iteration)
    folder = home.run_folder(row.run) / INPUTS
    yield OpenedSuite(
        run=name, spec=spec, row=row, suite=open_held_out(spec, Inputs.open(folder, spec).held_out, panel), media=folder
    )


def evaluate_suite(home: Home, run: str, iteration: int | None, path: Path, output: Output) -> None:
    """Evaluates a kept checkpoint on a suite, unless the ledger has the result already, and writes the result."""
    from yatt_core.evaluation.suites import load_suite

    with open_for(home, run, iteration, load_suite(path)) as opened:
        done = evaluated_once(home, opened)
    if output is Output.JSON:
        write_json(asdict(done))
        return
    for line in _lines(done):
        write(line)


def evaluated_once(home: Home, opened: OpenedSuite) -> SuiteRow:
    """Returns the evaluation of a checkpoint on a suite, from the ledger if it is there.

    Says on standard error what happens, and whether the result is worse than an earlier one.
    """
    run = opened.run
    row = opened.row
    with opened_ledger(home) as ledger:
        done = ledger.suites.find(run, opened.suite.digest, row.weights_digest)
        if done is not None:
            message(f"{run}, iteration {row.iteration}: evaluated on suite {done.suite} before")
            return done
    done = _evaluated(
        home=home,
        run=run,
        suite=opened.suite,
        spec=opened.spec,
        row=row,
        media=opened.media,
        by=named(None, "evaluates"),
    )
    with opened_ledger(home) as ledger:
        done = ledger.suites.add(done)
        _warn(ledger, run, done)
    return done


def _evaluated(home: Home, run: str, suite: Suite, spec: RunSpec, row: CheckpointRow, media: Path, by: str) -> SuiteRow:
    from db.write.suites import SuiteRow
    from yatt_core.evaluation.panel import Panel, as_plain
    from yatt_core.evaluation.summary import by_source, summarise
    from yatt_core.input_building.fitting import check_prompts
    from yatt_core.prompts.codec import open_codec

    weights = weights_of(home, spec, row)
    answering = suite.run_spec
    check_prompts(answering, open_codec(answering, weights.model_path), weights.model_path, [suite.prompts])
    message(f"evaluating {weights.named} of {run} on suite {suite.spec.name}: {many(len(suite.prompts), 'task')}")
    began = time.monotonic()
    panel = None if suite.spec.judges is None else Panel(suite.spec.judges, spec.seed)
    with progress_in_tasks(weights.named) as advance:
        tasks = evaluate_weights(
            spec=answering, weights=weights, advance=advance, prompts=suite.prompts, media=media, panel=panel
        )
    judged = [] if panel is None else panel.judge()
    whole = summarise(tasks, answering.evaluation)
    sets: Mapping[str, Summary | None] = by_source(tasks, answering.data, answering.evaluation)
    sets = sets or {answering.data.source_names[0]: whole}
    names = answering.data.source_names
    figures = {
        **figures_of(whole),
        **_panel_figures(judged),
        "sources": {
            name: figures_of(summary)
            | _panel_figures([said for said, task in zip(judged, tasks, strict=False) if names[task.source] == name])
            for name, summary in sets.items()
        },
    }
    said = [as_plain(each) for each in judged] or [{}] * len(tasks)
    return SuiteRow(
        run=run,
        suite=suite.spec.name,
        digest=suite.digest,
        suite_spec=suite.spec.model_dump(mode="json"),
        branch=row.branch,
        iteration=row.iteration,
        weights_digest=row.weights_digest,
        figures=figures,
        results=[asdict(task) | more for task, more in zip(tasks, said, strict=True)],
        by=by,
        seconds=time.monotonic() - began,
    )


def _panel_figures(judged: Sequence[PanelScores]) -> dict[str, Any]:
    from yatt_core.evaluation.panel import panel_estimates

    return {name: asdict(each) for name, each in panel_estimates(judged).items()} if judged else {}


@app.command(epilog=examples("yatt evaluations latest", "yatt evaluations quickstart-3 --suite math -o json"))
def evaluations(
    run: RunArgument,
    suite: Annotated[str | None, typer.Option("--suite", help="Show only the suite of this name.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the history of a run's suites: figures with intervals, and what is significantly worse than before."""
    from ops.evaluation.view import EVALUATIONS, suite_histories

    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        found = suite_histories(ledger, name, suite)
    if output is Output.JSON:
        write_json({"run": name, "suites": [asdict(history) for history in found]})
    elif not found:
        write(f"{name}: no suite has been evaluated; `yatt evaluate {name} --suite SUITE` does")
    for history in found if output is Output.TEXT else ():
        write_list(EVALUATIONS, history.points, history.suite)


def _warn(ledger: Any, run: str, row: SuiteRow) -> None:
    """Says on standard error if an evaluation is significantly worse than an earlier one."""
    from ops.evaluation.view import suite_histories

    (history,) = suite_histories(ledger, run, row.suite)
    point = next(each for each in history.points if each.number == row.number)
    if point.worse_than:
        message(f"warning: iteration {row.iteration} is significantly worse than {worse_text(point.worse_than)}")


def _lines(row: SuiteRow) -> Iterator[str]:
    yield f"{row.run}, iteration {row.iteration}, suite {row.suite} (weights {row.weights_digest[:12]})"
    yield from _figure_lines("all sets", row.figures)
    for name, figures in row.figures["sources"].items():
        yield from _figure_lines(name, figures)


def _figure_lines(title: str, figures: Mapping[str, Any]) -> Iterator[str]:
    interval = f"95 % interval {figures['low']:.3f} to {figures['high']:.3f}"
    yield f"  {title}: accuracy {figures['accuracy']:.3f} ({interval}), {many(figures['tasks'], 'task')}"
    for key, each in estimates_of(dict(figures)).items():
        yield f"    {key}: {each['value']:.3f} (95 % interval {each['low']:.3f} to {each['high']:.3f})"
