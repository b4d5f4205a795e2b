"""`yatt evaluate`: measures a kept checkpoint or a model folder on a run's held-out tasks or rows, in this process.

Consumes a run's inputs and spec, weights, and options that replace the spec's `evaluation.sampling`. Produces the figures
of all tasks and of each source. Needs neither Ray nor the run's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.evaluation.answering import (
    Weights,
    evaluate_weights,
    figures_of,
    model_weights,
    progress_in_tasks,
    weights_of,
)
from ops.evaluation.following import follow as follow_run
from ops.evaluation.rows import refuse_model, refuse_sampling, row_lines, row_report
from ops.evaluation.suites import evaluate_suite, refuse_with_suite
from ops.evaluation.words import estimates_of
from ops.presentation.output import message, write, write_json
from ops.process import keep_caches_inside
from ops.terminal.lookup import opened_checkpoint, opened_run
from ops.terminal.options import HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.write.records import CheckpointRow
    from yatt_core.protocols.receipts import TaskResult
    from yatt_core.spec import RunSpec

app = typer.Typer()


@app.command(
    epilog=examples(
        "yatt evaluate latest",
        "yatt evaluate quickstart-1 --iteration 0 -o json",
        "yatt evaluate latest --samples 16 --temperature 0.6 --pass-at 1 --pass-at 8 --vote boxed",
        "yatt evaluate latest --model models/small-instruct",
        "yatt evaluate quickstart-1 --suite suites/math.yaml --iteration 40",
        "CUDA_VISIBLE_DEVICES=7 yatt evaluate quickstart-1 --suite suites/math.yaml --follow",
    )
)
def evaluate(
    run: RunArgument,
    iteration: KeptOption = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Evaluate this Hugging Face folder instead of a checkpoint.")
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="One greedy answer to each task, whatever the spec says.")
    ] = False,
    samples: Annotated[
        int | None, typer.Option(help="Sampled answers to each task. Default: as the spec says.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of sampled answers.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling of answers.")] = None,
    pass_at: Annotated[list[int] | None, typer.Option(metavar="K", help="Estimate pass@K; can be repeated.")] = None,
    vote: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Majority vote; HOW finds the answer: whole, tag, boxed or last_number."),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(
            metavar="SUITE", help="Answer the sets of this suite instead; the result joins the run's history."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="With --suite: evaluate each checkpoint that the run keeps, until it ends.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure a kept checkpoint, or a model folder, on the run's held-out tasks or rows, or on a suite of sets."""
    given = {
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "pass_at": pass_at or None,
        "vote": None if vote is None else {"extract": vote},
    }
    place = Home.locate(home)
    keep_caches_inside(place)
    if suite is not None:
        refuse_with_suite(model, greedy, {key: value for key, value in given.items() if value is not None})
        if follow:
            follow_run(place, run, suite)
        else:
            evaluate_suite(home=place, run=run, iteration=iteration, path=suite, output=output)
        return
    if follow:
        raise ConfigurationError("--follow: needs --suite, whose results have a history")
    name, spec, row = _opened(place, run, iteration, model)
    chosen = {key: value for key, value in given.items() if value is not None}
    if not spec.samples_responses:
        refuse_sampling(name, spec, [*(["--greedy"] if greedy else []), *([_options(chosen)] if chosen else [])])
        if row is None:
            refuse_model(spec)
        what = str(model) if row is None else f"iteration {row.iteration}"
        message(f"evaluating {what} on the held-out rows")
        _write(
            row_report(place=place, run=name, spec=spec, row=row, model=model),
            output,
            lambda report: row_lines(f"{name}, {what}", report),
        )
        return
    weights = _weights(place=place, run=name, spec=spec, row=row, model=model)
    spec = with_sampling(spec, greedy, chosen)
    message(f"evaluating {weights.named} on the held-out tasks, {_answers(spec)}")
    with progress_in_tasks(weights.named) as advance:
        tasks = evaluate_weights(spec, weights, advance)
    title = f"{name}, {weights.named}"
    _write(_report(name, spec, weights, tasks), output, lambda report: _lines(title, report))


def _write(report: dict[str, Any], output: Output, lines: Callable[[Mapping[str, Any]], Iterator[str]]) -> None:
    """Writes a report as JSON, or as lines for people."""
    if output is Output.JSON:
        write_json(report)
        return
    for line in lines(report):
        write(line)


def _opened(
    place: Home, run: str, iteration: int | None, model: Path | None
) -> tuple[str, RunSpec, CheckpointRow | None]:
    """Returns the run's id, its spec, and the checkpoint, unless a model is given. Raises `ConfigurationError`."""
    if model is None:
        return opened_checkpoint(place, run, iteration)
    if iteration is not None:
        raise ConfigurationError("--iteration and --model: each selects what is evaluated; give only one of them")
    from yatt_core.models.model_folder import describe_model

    name, spec = opened_run(place, run)
    if spec.virtual:
        raise ConfigurationError(f"--model: run {name} uses virtual engines, which have no model")
    try:
        describe_model(model)
    except ConfigurationError as error:
        raise ConfigurationError(f"--model: {str(error).removeprefix('model.path: ')}") from None
    return name, spec, None


def _weights(place: Home, run: str, spec: RunSpec, row: CheckpointRow | None, model: Path | None) -> Weights:
    """Returns what is to answer the held-out tasks: a checkpoint, or a model."""
    if row is not None:
        return weights_of(place, spec, row)
    assert model is not None
    return Weights(
        named=str(model),
        iteration=None,
        folder=place.run_folder(run),
        model_path=str(model.resolve()),
        load=lambda: model_weights(model),
    )


def with_sampling(spec: RunSpec, greedy: bool, given: Mapping[str, Any]) -> RunSpec:
    """Returns the spec with the options in place of its `evaluation.sampling`. Raises `ConfigurationError`.

    given: the keys of `evaluation.sampling` that are replaced.
    """
    from pydantic import ValidationError

    from yatt_core.spec import RunSpec

    if greedy and given:
        raise ConfigurationError(f"--greedy: there is one answer to each task, so {_options(given)} cannot be used")
    sampling = spec.evaluation.sampling
    tree = spec.model_dump(mode="json")
    if greedy:
        tree["evaluation"]["sampling"] = None
    elif given:
        tree["evaluation"]["sampling"] = {**(sampling.model_dump(mode="json") if sampling else {}), **given}
    try:
        return RunSpec.model_validate(tree)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}".removeprefix(": ")
            for each in error.errors()
        )
        raise ConfigurationError(f"{_options(given)}: {said}") from None


def _options(given: Mapping[str, Any]) -> str:
    return ", ".join("--" + key.replace("_", "-") for key in given)


def _report(run: str, spec: RunSpec, weights: Weights, tasks: Sequence[TaskResult]) -> dict[str, Any]:
    """Returns the JSON document: figures of all tasks and by source, and the result of each task."""
    from yatt_core.evaluation.summary import by_source, summarise

    sampling = spec.evaluation.sampling
    names = spec.data.source_names
    return {
        "run": run,
        "iteration": weights.iteration,
        "model": weights.named if weights.iteration is None else None,
        "sampling": None if sampling is None else sampling.model_dump(mode="json"),
        **figures_of(summarise(tasks, spec.evaluation)),
        "correct": sum(task.correct for task in tasks),
        "sources": {
            name: figures_of(summary) for name, summary in by_source(tasks, spec.data, spec.evaluation).items()
        },
        "results": [_result(task, names[task.source]) for task in tasks],
    }


def _result(task: TaskResult, source: str) -> dict[str, Any]:
    """Returns the result of a task as plain values; without a score there is no reward."""
    return {**asdict(task), "source": source, "reward": task.reward if task.samples else None}


def _lines(title: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines for people: one for each figure, then those of each source."""
    interval = f"95 % interval {report['low']:.3f} to {report['high']:.3f}"
    tasks = many(report["tasks"], "task")
    yield f"{title}: accuracy {report['accuracy']:.3f} ({interval}), {tasks}, mean reward {report['reward']:.3f}"
    for name, each in estimates_of(dict(report)).items():
        yield f"  {name}: {each['value']:.3f} (95 % interval {each['low']:.3f} to {each['high']:.3f})"
    for name, figures in report.get("sources", {}).items():
        yield from _lines(name, figures)


def _answers(spec: RunSpec) -> str:
    """Returns how the tasks are answered, for people."""
    sampling = spec.evaluation.sampling
    if sampling is None:
        return "greedily"
    return f"{many(sampling.samples, 'answer')} each at temperature {sampling.temperature:g}"
