"""`yatt evaluate`: measures a kept checkpoint's held-out accuracy in this process, without Ray or the run's driver."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from ops.cli.lookup import opened_checkpoint
from ops.cli.options import HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import message, write, write_json
from ops.process import keep_caches_inside

if TYPE_CHECKING:
    from pathlib import Path

    from db.write.records import CheckpointRow
    from yatt_core.protocols.engines import Tensors
    from yatt_core.protocols.generation import GenerateResult
    from yatt_core.spec import RunSpec
    from yatt_core.tools.dialogue import Dialogue

NORMAL_95 = 1.959963984540054


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command(epilog=examples("yatt evaluate latest", "yatt evaluate quickstart-1 --iteration 0 -o json"))(evaluate)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A checkpoint's results on the held-out tasks.

    low, high: bounds of the accuracy's 95 % Wilson interval.
    """

    run: str
    iteration: int
    tasks: int
    correct: int
    accuracy: float
    low: float
    high: float
    reward: float


def evaluate(
    run: RunArgument,
    iteration: KeptOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure a kept checkpoint's accuracy on the run's held-out tasks, with greedy decoding."""
    from flows.run.home import Home

    place = Home.locate(home)
    keep_caches_inside(place)
    name, spec, row = opened_checkpoint(place, run, iteration)
    message(f"evaluating the checkpoint of iteration {row.iteration} on the held-out tasks")
    found = evaluate_checkpoint(place.run_folder(row.run), name, spec, row)
    if output is Output.JSON:
        write_json(asdict(found))
        return
    interval = f"95 % interval {found.low:.3f} to {found.high:.3f}"
    write(f"{name}, iteration {found.iteration}: accuracy {found.accuracy:.3f} ({interval})")
    write(f"{found.correct} of {found.tasks} held-out tasks correct, mean reward {found.reward:.3f}")


def evaluate_checkpoint(run_folder: Path, run: str, spec: RunSpec, row: CheckpointRow) -> Evaluation:
    """Verifies and loads the checkpoint, generates one response per held-out task, and scores the responses."""
    from yatt_core.engines.registry import build_rollout_engine
    from yatt_core.input_building.materialise import initial_model
    from yatt_core.inputs.manifest import INPUTS
    from yatt_core.inputs.reader import Inputs
    from yatt_core.prompts.codec import encode_question, open_codec
    from yatt_core.prompts.stream import media_of
    from yatt_core.rewards.scoring import RewardScorer, Scored
    from yatt_core.tools.dialogue import Dialogue, greedy_request, hold
    from yatt_core.tools.toolbox import Toolbox

    folder, model_path = run_folder / INPUTS, initial_model(spec, run_folder)
    codec, scorer = open_codec(spec, model_path), RewardScorer(spec.rewards, run_folder)
    engine = build_rollout_engine(spec, model_path, folder)
    engine.update_weights(checkpoint_weights(run_folder, spec, row), row.iteration)
    prompts = Inputs.open(folder, spec).held_out

    def generate(dialogue: Dialogue) -> GenerateResult:
        return engine.generate(greedy_request(dialogue, codec.stop_tokens, row.iteration))

    correct, rewards = 0, []
    with closing(Toolbox(spec.rollout.tools)) as toolbox:
        for start in range(0, len(prompts), spec.rollout.batch_samples):
            batch = prompts[start : start + spec.rollout.batch_samples]
            tokens = [encode_question(prompt, codec) for prompt in batch]
            responses = hold(Dialogue(spec.rollout, codec, tokens, media_of(batch)), generate, toolbox)
            pairs = enumerate(zip(batch, responses, strict=True))
            for score in scorer.score([Scored(prompt, said.completion, group) for group, (prompt, said) in pairs]):
                correct += score.correct
                rewards.append(score.total)
    low, high = wilson_interval(correct, len(prompts))
    accuracy, reward = correct / len(prompts), math.fsum(rewards) / len(prompts)
    return Evaluation(run, row.iteration, len(prompts), correct, accuracy, low, high, reward)


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


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Returns the 95 % Wilson score interval of a proportion (Wilson, 1927).

    Unlike the normal approximation it stays within 0 and 1 and is accurate for few trials.
    """
    share, z2 = successes / trials, NORMAL_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)
