"""`yatt evaluate`: measures a kept checkpoint or a model folder on a run's held-out tasks, in this process.

Consumes a run's inputs and spec, weights, and options that replace the spec's `evaluation.sampling`. Produces the figures
of all tasks and of each source. Needs neither Ray nor the run's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.lookup import opened_checkpoint, opened_run
from ops.cli.options import HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import console, message, write, write_json
from ops.process import keep_caches_inside

if TYPE_CHECKING:
    from db.write.records import CheckpointRow
    from flows.run.home import Home
    from yatt_core.evaluation.summary import Summary
    from yatt_core.protocols.engines import Tensors
    from yatt_core.protocols.receipts import TaskResult
    from yatt_core.spec import RunSpec


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    shown = (
        "yatt evaluate latest",
        "yatt evaluate quickstart-1 --iteration 0 -o json",
        "yatt evaluate latest --samples 16 --temperature 0.6 --pass-at 1 --pass-at 8 --vote boxed",
        "yatt evaluate latest --model models/small-instruct",
    )
    app.command(epilog=examples(*shown))(evaluate)


@dataclass(frozen=True, slots=True)
class Weights:
    """What is evaluated.

    named: for people.
    iteration: the checkpoint's; None for a model folder.
    folder: folder of the run that has the inputs.
    model_path: folder with config and tokenizer; empty for a virtual run.
    load: reads the weights.
    """

    named: str
    iteration: int | None
    folder: Path
    model_path: str
    load: Callable[[], Tensors]


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
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure a kept checkpoint, or a model folder, on the run's held-out tasks."""
    from flows.run.home import Home

    given = {
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "pass_at": pass_at or None,
        "vote": None if vote is None else {"extract": vote},
    }
    place = Home.locate(home)
    keep_caches_inside(place)
    name, spec, weights = _opened(place, run, iteration, model)
    spec = with_sampling(spec, greedy, {key: value for key, value in given.items() if value is not None})
    message(f"evaluating {weights.named} on the held-out tasks, {_answers(spec)}")
    with _progress(weights.named) as advance:
        tasks = evaluate_weights(spec, weights, advance)
    report = _report(name, spec, weights, tasks)
    if output is Output.JSON:
        write_json(report)
        return
    for line in _lines(f"{name}, {weights.named}", report):
        write(line)


def _opened(place: Home, run: str, iteration: int | None, model: Path | None) -> tuple[str, RunSpec, Weights]:
    """Returns the run's id, its spec, and what is to be evaluated. Raises `ConfigurationError`."""
    from yatt_core.errors import ConfigurationError
    from yatt_core.input_building.materialise import initial_model

    if model is None:
        name, spec, row = opened_checkpoint(place, run, iteration)
        folder = place.run_folder(row.run)
        path = initial_model(spec, folder)
        named = f"iteration {row.iteration}"
        return name, spec, Weights(named, row.iteration, folder, path, lambda: checkpoint_weights(folder, spec, row))
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
    folder = place.run_folder(name)
    return name, spec, Weights(str(model), None, folder, str(model.resolve()), lambda: model_weights(model))


def with_sampling(spec: RunSpec, greedy: bool, given: Mapping[str, Any]) -> RunSpec:
    """Returns the spec with the options in place of its `evaluation.sampling`. Raises `ConfigurationError`.

    given: the keys of `evaluation.sampling` that are replaced.
    """
    from pydantic import ValidationError

    from yatt_core.errors import ConfigurationError
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


def evaluate_weights(spec: RunSpec, weights: Weights, advance: Callable[[int, int], None]) -> list[TaskResult]:
    """Loads weights into a rollout engine and has it answer the held-out tasks; returns the results in order.

    advance: called with the numbers of finished and of all tasks.
    """
    from yatt_core.engines.registry import build_rollout_engine
    from yatt_core.evaluation.answers import TaskAnswers
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.inputs.reader import Inputs
    from yatt_core.prompts.codec import open_codec
    from yatt_core.rewards.scoring import RewardScorer
    from yatt_core.tools.toolbox import Toolbox

    folder, version = weights.folder / INPUTS, weights.iteration or 0
    codec, scorer = open_codec(spec, weights.model_path), RewardScorer(spec.rewards, weights.folder)
    engine = build_rollout_engine(spec, weights.model_path, folder)
    engine.update_weights(weights.load(), version)
    prompts, found = Inputs.open(folder, spec).held_out, list[Any]()
    with closing(Toolbox(spec.rollout.tools)) as toolbox:
        answers = TaskAnswers(spec, codec, scorer, toolbox)
        for batch in answers.batches(0, prompts):
            while answers.hear(batch, engine.generate(answers.request(batch, version))):
                pass
            found += answers.results(batch)
            advance(len(found), len(prompts))
    return found


def checkpoint_weights(run_folder: Path, spec: RunSpec, row: CheckpointRow) -> Tensors:
    """Returns a checkpoint's weights after verifying every byte against the ledger. Raises `DataError` for damage."""
    from yatt_core.checkpoints.verify import verify_checkpoint

    verify_checkpoint(run_folder, row.folder, row.manifest_sha256)
    folder = run_folder / row.folder
    if spec.virtual:
        import safetensors.numpy

        from yatt_core.engines.virtual.trainer import STATE_FILE

        return {"state": safetensors.numpy.load_file(folder / STATE_FILE)["state"]}
    from yatt_core.checkpoints.contents import WEIGHTS, open_tensors

    weights = open_tensors(folder, WEIGHTS)
    return {name: weights.read(name) for name in weights.shapes}


def model_weights(folder: Path) -> Tensors:
    """Returns the weights in a Hugging Face folder in float32, tied ones once. Raises as `load_causal_lm` does."""
    from yatt_core.models.loading import load_causal_lm

    first: dict[tuple[int, tuple[int, ...]], str] = {}
    state = load_causal_lm(str(folder), "float32").state_dict()
    for name, tensor in state.items():
        first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
    return {name: state[name].numpy() for name in first.values()}


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
        **_figures(summarise(tasks, spec.evaluation)),
        "correct": sum(task.correct for task in tasks),
        "sources": {name: _figures(summary) for name, summary in by_source(tasks, spec.data, spec.evaluation).items()},
        "results": [{**asdict(task), "source": names[task.source]} for task in tasks],
    }


def _figures(summary: Summary) -> dict[str, Any]:
    accuracy = summary.estimates["accuracy"]
    others = {name: asdict(each) for name, each in summary.estimates.items() if each is not accuracy}
    return {
        "tasks": summary.tasks,
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "reward": summary.reward,
        **others,
    }


def _lines(title: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines for people: one for each figure, then those of each source."""
    interval = f"95 % interval {report['low']:.3f} to {report['high']:.3f}"
    yield f"{title}: accuracy {report['accuracy']:.3f} ({interval}), {report['tasks']} tasks, mean reward {report['reward']:.3f}"
    for name, each in report.items():
        if isinstance(each, dict) and "value" in each:
            yield f"  {_spoken(name)}: {each['value']:.3f} (95 % interval {each['low']:.3f} to {each['high']:.3f})"
    for name, figures in report.get("sources", {}).items():
        yield from _lines(name, figures)


def _spoken(name: str) -> str:
    return name.replace("pass_at_", "pass@") if name != "majority" else "majority vote"


def _answers(spec: RunSpec) -> str:
    """Returns how the tasks are answered, for people."""
    sampling = spec.evaluation.sampling
    if sampling is None:
        return "greedily"
    return f"{sampling.samples} answers each at temperature {sampling.temperature:g}"


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar in tasks, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
