"""Does a vision-language run learn from images? Trains `configs/multimodal.yaml` completely and tests the result.

Compares it, in the same run, with the weights after SFT, with the best constant answer, and with the trained weights
shown the pictures of other rows: a policy that counts what it sees falls back to chance there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from examples.shapes import write_shapes
from flows.run.home import Home
from ops.evaluation.answering import checkpoint_weights
from ops.terminal.lookup import opened_checkpoint
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.evaluation.estimators import wilson_interval
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.codec import TextCodec, encode_question, open_codec
from yatt_core.prompts.stream import Prompt, media_of
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec import RunSpec
from yatt_core.tools.dialogue import Dialogue, greedy_request

CONFIG = Path(__file__).parents[1] / "configs" / "multimodal.yaml"
TRAIN_ROWS = 3000
HELD_OUT_ROWS = 300
SHUFFLES = 5
"""Orders of the held-out pictures over which the accuracy with shuffled images is averaged."""


def train(home: Path, data: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Trains the run; returns the results of `yatt train` and its wall seconds."""
    sources = [f"data.sources.0.path={data / 'train.jsonl'}", f"data.sources.0.held_out_path={data / 'held-out.jsonl'}"]
    started = time.monotonic()
    return trained(home, CONFIG, [*sources, *overrides]), time.monotonic() - started


class Asker:
    """Answers a run's held-out tasks with its newest weights, in this process."""

    def __init__(self, home: Home, run: str) -> None:
        self._spec: RunSpec
        _, self._spec, row = opened_checkpoint(home, run, None)
        folder = home.run_folder(run)
        model_path = str(folder / INPUTS / "model")
        self.held_out: Sequence[Prompt] = Inputs.open(folder / INPUTS, self._spec).held_out
        self._codec: TextCodec = open_codec(self._spec, model_path)
        self._scorer = RewardScorer(self._spec.rewards)
        self._engine: RolloutEngine = build_rollout_engine(self._spec, model_path, folder / INPUTS)
        self._engine.update_weights(checkpoint_weights(folder, self._spec, row), row.iteration)

    def accuracy(self, media: Sequence[tuple[str, ...]]) -> float:
        """Returns the share of tasks answered correctly if their prompts show these images."""
        tokens = [encode_question(prompt, self._codec) for prompt in self.held_out]
        version = self._engine.version
        dialogue = Dialogue(self._spec.rollout, self._codec, tokens, media)
        dialogue.hear(self._engine.generate(greedy_request(dialogue, self._codec.stop_tokens, version)))
        pairs = enumerate(zip(self.held_out, dialogue.responses, strict=True))
        scores = self._scorer.score([Scored(prompt, said.completion, group) for group, (prompt, said) in pairs])
        return sum(score.correct for score in scores) / len(scores)


def accuracy_shuffled(asker: Asker) -> list[float]:
    """Returns the accuracies with the held-out pictures in other orders."""
    media = media_of(asker.held_out)
    orders = [np.random.default_rng(seed).permutation(len(media)) for seed in range(SHUFFLES)]
    return [asker.accuracy([media[place] for place in order]) for order in orders]


def measure(folder: Path, overrides: Sequence[str]) -> tuple[dict[str, float], dict[str, Any]]:
    """Trains a run in an empty folder; returns its figures and the data behind them."""
    write_shapes(folder / "shapes", TRAIN_ROWS, HELD_OUT_ROWS)
    results, seconds = train(folder / "runs", folder / "shapes", overrides)
    progress(f"trained in {seconds:.0f} s, held-out accuracy {results['accuracy']:.3f}")
    asker = Asker(Home.locate(folder / "runs"), results["run"])
    answers = Counter(prompt.answer for prompt in asker.held_out)
    tasks = len(asker.held_out)
    constant = max(answers.values()) / tasks
    shuffled = accuracy_shuffled(asker)
    figures = {
        "accuracy_sft": results["accuracy_sft"],
        "accuracy": results["accuracy"],
        "gain": results["accuracy"] / max(results["accuracy_sft"], constant),
        "accuracy_shuffled_images": sum(shuffled) / len(shuffled),
        "accuracy_best_constant": constant,
        "seconds": seconds,
    }
    details = {
        "accuracy_here": asker.accuracy(media_of(asker.held_out)),
        "interval_95": wilson_interval(results["accuracy"], tasks),
        "shuffled": shuffled,
        "held_out": tasks,
        "iterations": results["iteration"],
        "sft_seconds": results["sft_seconds"],
        "driver_bytes_per_sample": results["flow_bytes_per_sample"],
    }
    return figures, details


def main() -> None:
    """Measures and prints the report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default 0)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    arguments = parser.parse_args()
    os.environ.setdefault("DO_NOT_TRACK", "true")
    load = [load_average()]
    with tempfile.TemporaryDirectory(prefix="yatt-multimodal-") as folder:
        figures, details = measure(Path(folder), [f"seed={arguments.seed}", *arguments.set])
    baselines = {name: figures[name] for name in ("accuracy_sft", "accuracy_best_constant")}
    load.append(load_average())
    print_report(
        Report(
            name="multimodal", figures=figures, seeds=[arguments.seed], load=load, baselines=baselines, details=details
        ),
        arguments.json,
    )


if __name__ == "__main__":
    main()
