"""Evaluates a run that learns from rows: a trainer in this process scores the held-out rows, as the run's own one does.

Consumes a spec and a kept checkpoint, or a model folder. Produces the objective's figures as plain values. Needs neither Ray nor
a driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.run.home import Home
from yatt_core.errors import ConfigurationError
from yatt_core.keys import WorkKey

if TYPE_CHECKING:
    from db.write.records import CheckpointRow
    from yatt_core.protocols.receipts import RowsReceipt
    from yatt_core.spec import RunSpec
    from yatt_core.spec.sections.trainer import TorchTrainer

PREFIX = "evaluation/"
ABOUT = ("run", "iteration", "model", "objective", "workload")
"""Keys of a report that say what its figures are about."""


def refuse_sampling(run: str, spec: RunSpec, options: Sequence[str]) -> None:
    """Raises `ConfigurationError` for options that say how tasks are answered.

    options: those that were given.
    """
    if options:
        raise ConfigurationError(
            f"{', '.join(options)}: run {run} has {learnt_by(spec)}, which is measured on held-out rows without sampling "
            "any answers; leave these options out"
        )


def learnt_by(spec: RunSpec) -> str:
    """Returns the key and the name of what says how a run learns that samples no responses."""
    return f"workload.kind {spec.workload.title}" if spec.objective is None else f"objective.kind {spec.objective.kind}"


def refuse_model(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if a model folder cannot be measured: it has neither a reference, a head nor a workload."""
    if spec.objective is None:
        raise ConfigurationError(
            f"--model: workload.kind {spec.workload.title} measures its own checkpoints; expected --iteration, or neither for "
            "the newest"
        )
    if spec.keeps_reference or spec.trains_reward_model:
        lacking = "reference" if spec.keeps_reference else "head"
        raise ConfigurationError(
            f"--model: objective.kind {spec.objective.kind} is measured with the run's {lacking}, which only the run's "
            "checkpoints have; expected --iteration, or neither for the newest checkpoint"
        )


def row_report(place: Home, run: str, spec: RunSpec, row: CheckpointRow | None, model: Path | None) -> dict[str, Any]:
    """Returns the JSON document: the number of held-out rows, and the objective's figures on them by name.

    row: the checkpoint; None for a model folder, which is then given.

    Raises `DataError` for damage.
    """
    from yatt_core.evaluation.row_figures import row_figures

    learnt = {"workload": spec.workload.title} if spec.objective is None else {"objective": spec.objective.kind}
    receipt = _of_model(place, run, spec, model) if row is None else _of_checkpoint(place, spec, row)
    figures = {name.removeprefix(PREFIX): value for name, value in row_figures(receipt).items()}
    return {
        "run": run,
        "iteration": None if row is None else row.iteration,
        "model": None if model is None else str(model),
        **learnt,
        "rows": receipt.total,
        **figures,
    }


def figures_on_rows(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a report without what they are about."""
    return {name: value for name, value in report.items() if name not in ABOUT}


def row_lines(title: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines for people."""
    if "workload" in report:
        figures = {name: value for name, value in figures_on_rows(report).items() if name != "rows"}
        yield f"{title}: {', '.join(f'{name} {value:.4f}' for name, value in figures.items()) or 'nothing is evaluated'}"
        return
    loss = f"loss {report['loss']:.4f}, {report['rows']} held-out rows"
    if "accuracy" not in report:
        yield f"{title}: {loss}"
        return
    interval = f"95 % interval {report['accuracy_low']:.3f} to {report['accuracy_high']:.3f}"
    yield f"{title}: accuracy {report['accuracy']:.3f} ({interval}), margin {report['margin']:.4f}, {loss}"
    for name in ("reward", "log_prob"):
        if f"chosen_{name}" in report:
            chosen = report[f"chosen_{name}"]
            rejected = report[f"rejected_{name}"]
            yield f"  {name.replace('_', '-')}: chosen {chosen:.4f}, rejected {rejected:.4f}"


def _of_checkpoint(place: Home, spec: RunSpec, row: CheckpointRow) -> RowsReceipt:
    """Verifies every byte of a checkpoint, and scores the rows with it and with its reference."""
    from yatt_core.checkpoints.verify import verify_checkpoint
    from yatt_core.engines.registry import build_train_engine
    from yatt_core.input_building.materialise import initial_model
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.protocols.engines import RankContext
    from yatt_core.protocols.receipts import RowsTask

    folder = place.run_folder(row.run)
    verify_checkpoint(folder, row.folder, row.manifest_sha256)
    context = RankContext(folder, folder / INPUTS, initial_model(spec, folder), row.branch)
    engine = build_train_engine(_alone(spec), context)
    engine.connect(0, 1, "")
    engine.restore(folder / row.folder, row.iteration)
    return engine.evaluate(RowsTask(WorkKey(row.run, row.branch, row.iteration, "evaluate"), row.term))


def _of_model(place: Home, run: str, spec: RunSpec, model: Path | None) -> RowsReceipt:
    """Scores the rows with the weights in a model folder."""
    from yatt_core.engines.registry import build_train_engine
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.protocols.engines import RankContext
    from yatt_core.protocols.receipts import RowsTask

    assert model is not None, "the caller has a checkpoint or a model"
    folder = place.run_folder(run)
    engine = build_train_engine(_alone(spec), RankContext(folder, folder / INPUTS, str(model.resolve()), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    return engine.evaluate(RowsTask(WorkKey(run, 0, 0, "evaluate"), 0))


def _alone(spec: RunSpec) -> RunSpec:
    """Returns the spec with a torch trainer of one rank; checkpoints of all trainers have one format."""
    from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer

    engine = spec.trainer.engine
    assert not isinstance(engine, VirtualTrainer), "refused with any objective"
    alone: TorchTrainer
    if isinstance(engine, TorchTrainer):
        alone = engine.model_copy(update={"ranks": 1})
    else:
        alone = TorchTrainer(ranks=1, dtype=engine.dtype, micro_batch_tokens=engine.micro_batch_tokens)
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"engine": alone})})
