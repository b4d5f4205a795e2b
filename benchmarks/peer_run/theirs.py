"""TRL's side: `trl_run.py` in the environment of the peers, with the prompts and settings of our run.

Consumes the spec of our run. Produces a `Measured`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peer_environment
from benchmarks.peer_run.measured import CHECKPOINT, EVALUATE, ORCHESTRATION, PARTS, WEIGHTS, Measured, Point
from yatt_core.engines.train.steps.schedule import learning_rate_factor
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.spec import RunSpec

PROGRAM = Path(__file__).with_name("trl_run.py")
OURS_ALONE = (WEIGHTS, ORCHESTRATION)
"""What TRL has nothing of: it samples with the weights that it trains."""
TRIED_ITERATIONS = 6


class Layout(NamedTuple):
    """How TRL uses the cores: its processes, which share an iteration's samples, and the threads of each."""

    processes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.processes}x{self.threads}"


LAYOUTS = (Layout(1, 1), Layout(1, 2), Layout(2, 1))
"""All that fit on two cores."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A run of TRL. versions: of its libraries, by name."""

    measured: Measured
    versions: Mapping[str, str]


def request_of(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Returns the request: settings of our spec in plain values, and the prompts that our run draws, in their order.

    folder: where the inputs of the run are built.
    """
    model = materialise(spec, folder).model_path
    inputs = Inputs.open(folder / INPUTS, spec)
    codec = open_codec(spec, model)
    assert isinstance(codec, PromptCodec)
    count = spec.iterations * spec.data.prompts_per_iteration
    references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), count)
    drawn = [inputs.prompt(reference) for reference in references]
    optimizer = spec.trainer.optimizer
    schedule = spec.trainer.schedule
    numbers = range(1, spec.iterations + 1)
    return {
        "model": model,
        "seed": spec.seed,
        "iterations": spec.iterations,
        "prompts_per_iteration": spec.data.prompts_per_iteration,
        "samples": spec.rollout.samples_per_prompt,
        "response": spec.rollout.max_new_tokens,
        "temperature": spec.rollout.temperature,
        "rates": [
            optimizer.learning_rate * learning_rate_factor(schedule, number, spec.iterations) for number in numbers
        ],
        "betas": list(optimizer.betas),
        "epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "evaluate_every": spec.evaluation.every,
        "checkpoint_every": spec.checkpoints.every,
        "train": [row_of(prompt, codec) for prompt in drawn],
        "held_out": [row_of(prompt, codec) for prompt in inputs.held_out],
    }


def row_of(prompt: Prompt, codec: PromptCodec) -> dict[str, Any]:
    """Returns a prompt as the model reads it, in text and in tokens, and its answer."""
    return {"prompt": codec.shown(prompt), "tokens": codec.encode_prompt(prompt).tolist(), "answer": prompt.answer}


def train(request: Mapping[str, Any], layout: Layout, folder: Path) -> Finished:
    """Trains a run with TRL and returns what was measured.

    folder: for what the run writes; must not exist.
    """
    folder.mkdir()
    asked = {**request, **layout._asdict(), "output": str(folder / "run")}
    began = time.time()
    answer = peer_environment.answer_of(PROGRAM, asked, folder, layout.processes)
    seconds = time.time() - began
    return Finished(measured_of(answer, request["iterations"], began, seconds), answer["versions"])


def tried_seconds(request: Mapping[str, Any], layout: Layout, folder: Path) -> float:
    """Returns the seconds of an iteration in a short run, without evaluations and checkpoints.

    folder: as for `train`.
    """
    iterations = min(TRIED_ITERATIONS, request["iterations"])
    measured = train({**request, "iterations": iterations}, layout, folder).measured
    return measured.iteration_seconds - measured.parts[EVALUATE] - measured.parts[CHECKPOINT]


def measured_of(answer: Mapping[str, Any], iterations: int, began: float, seconds: float) -> Measured:
    """Returns what an answer of the program says.

    began: when the program was started, in seconds since 1970.
    seconds: how long it took.
    """
    spent: Mapping[str, float] = answer["seconds"]
    assert set(spent) <= set(PARTS) - set(OURS_ALONE), "the parts have the same names on both sides"
    return Measured(
        iterations=iterations,
        begin=answer["begin"] - began,
        end=answer["end"] - began,
        seconds=seconds,
        accuracies=[Point(moment - began, accuracy) for moment, accuracy in answer["accuracies"]],
        parts={part: spent.get(part, 0.0) / iterations for part in PARTS},
    )
