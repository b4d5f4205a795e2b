"""Loads weights into a rollout engine of this process and has it answer tasks, with or without a suite.

Consumes a spec, weights and tasks. Produces the result of each task and its figures as plain values. Needs neither Ray nor a
driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.run.home import Home
from ops.presentation.output import console
from yatt_core.errors import DataError
from yatt_core.models.loading import load_causal_lm

if TYPE_CHECKING:
    from db.write.records import CheckpointRow
    from yatt_core.evaluation.panel import Panel
    from yatt_core.evaluation.summary import Summary
    from yatt_core.prompts.stream import Prompt
    from yatt_core.protocols.engines import Tensors
    from yatt_core.protocols.receipts import TaskResult
    from yatt_core.spec import RunSpec


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


def weights_of(home: Home, spec: RunSpec, row: CheckpointRow) -> Weights:
    """Returns the weights of a kept checkpoint; its files are verified when they are loaded."""
    from yatt_core.input_building.materialise import initial_model

    folder = home.run_folder(row.run)
    path = initial_model(spec, folder)
    named = f"iteration {row.iteration}"
    return Weights(
        named=named,
        iteration=row.iteration,
        folder=folder,
        model_path=path,
        load=lambda: checkpoint_weights(folder, spec, row),
    )


def evaluate_weights(
    spec: RunSpec,
    weights: Weights,
    advance: Callable[[int, int], None],
    prompts: Sequence[Prompt] | None = None,
    media: Path | None = None,
    panel: Panel | None = None,
) -> list[TaskResult]:
    """Loads weights into a rollout engine and has it answer tasks; returns the results in order.

    advance: called with the numbers of finished and of all tasks.
    prompts: the tasks; None for those that the run holds out.
    media: folder of the tasks' images; None for the run's inputs.
    panel: takes all answers.
    """
    from yatt_core.engines.registry import build_rollout_engine
    from yatt_core.evaluation.answers import TaskAnswers
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.inputs.reader import Inputs
    from yatt_core.prompts.codec import open_codec
    from yatt_core.rewards.scoring import RewardScorer
    from yatt_core.tools.toolbox import Toolbox

    folder = weights.folder / INPUTS
    version = weights.iteration or 0
    codec = open_codec(spec, weights.model_path)
    scorer = RewardScorer(spec.rewards, weights.folder)
    engine = build_rollout_engine(spec, weights.model_path, media or folder)
    engine.update_weights(weights.load(), version)
    found = list[Any]()
    if prompts is None:
        prompts = Inputs.open(folder, spec).held_out
    with closing(Toolbox(spec.rollout.tools, weights.folder)) as toolbox:
        answers = TaskAnswers(spec, codec, scorer, toolbox)
        for batch in answers.batches(0, prompts):
            while answers.hear(batch, engine.generate(answers.request(batch, version))):
                pass
            found += answers.results(batch)
            if panel is not None:
                panel.take(batch)
            advance(len(found), len(prompts))
    engine.sleep()  # leaves the memory to judges
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
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    state = load_causal_lm(str(folder), "float32").state_dict()
    for name, tensor in state.items():
        first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
    return {name: state[name].numpy() for name in first.values()}


def figures_of(summary: Summary | None) -> dict[str, Any]:
    """Returns figures as plain values: tasks, accuracy with its interval, reward, and the other estimates by name.

    Raises `DataError` if there are none, because no answer has a score.
    """
    if summary is None:
        raise DataError("no answer to any task has a score: a reward part failed on all of them")
    accuracy = summary.estimates["accuracy"]
    others = {name: asdict(each) for name, each in summary.estimates.items() if each is not accuracy}
    return {
        "tasks": summary.tasks,
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "reward": summary.reward,
        "unscored": summary.unscored,
        **others,
    }


@contextmanager
def progress_in_tasks(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar in tasks, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
