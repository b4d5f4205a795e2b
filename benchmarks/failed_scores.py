"""What do scores that fail for good do to what is learnt? A fifth of the quickstart's fail, and are masked or count as 0.

Consumes the number of seeds. Trains the quickstart as it is and with a reward function that raises for a random fifth of its
calls, once with `on_failure: mask` and once with `zero`, in processes of their own. Reports the held-out accuracy at the end by
the quickstart's own function, which stands beside the other with no weight and never fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from yatt_core.prompts.stream import Prompt

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
FAILING = 0.2
LARGEST_LOSS = 0.03
"""Mean accuracy of the undisturbed runs over that of the masked ones."""
CHANCE = random.SystemRandom()


def spelled(prompt: Prompt, response: str, failing: float) -> float:
    """Returns 1.0 for the right letters and 0.0 for others, as the quickstart's function does; fails at times.

    Capitals do not count: every sixth word has one, which the quickstart's tokenizer cannot write.

    failing: fraction of the calls that raise.
    """
    if CHANCE.random() < failing:
        raise ConnectionError("the scorer is out of order")
    return float(response.strip().lower() == str(prompt.answer).lower())


def part(on_failure: str) -> str:
    """Returns the override of the spec that has a fifth of the scores fail."""
    measured = {"name": "exact", "function": "reasoning_gym", "options": {"exact": True}, "weight": 0.0}
    learnt = {
        "name": "spelled",
        "function": "benchmarks.failed_scores:spelled",
        "options": {"failing": FAILING},
        "on_failure": on_failure,
    }
    return f"rewards.parts={json.dumps([measured, learnt])}"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argument_parser(__doc__)
    made.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    return made


def main() -> None:
    """Trains the runs and reports their accuracies."""
    arguments = parser().parse_args()
    load = load_average()
    seeds = list(range(arguments.seeds))
    ways = {"undisturbed": [], "mask": [part("mask")], "zero": [part("zero")]}
    found: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="failed-scores-") as place:
        for seed in seeds:
            for way, changes in ways.items():
                progress(f"seed {seed}: {way}")
                quiet = "guards.mostly_unscored.action=alert"
                told = trained(Path(place) / f"{way}-{seed}", QUICKSTART, [f"seed={seed}", quiet, *changes])
                found[way].append(float(told["accuracy"]))
    means = {way: statistics.fmean(values) for way, values in found.items()}
    figures = {
        **{f"accuracy_{way}": mean for way, mean in means.items()},
        "loss_mask": means["undisturbed"] - means["mask"],
        "loss_zero": means["undisturbed"] - means["zero"],
    }
    report = Report(
        name="failed_scores",
        figures=figures,
        seeds=seeds,
        load=[load, load_average()],
        baselines={"largest_loss": LARGEST_LOSS},
        details={"accuracies": found},
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
