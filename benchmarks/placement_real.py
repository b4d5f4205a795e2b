"""What does dynamic placement gain if policy and judge are real models, write long texts, and every core is a device?

Consumes configs/genrm.yaml, changed: a policy and a judge that have learnt nothing write texts whose lengths have a long tail,
and the engines take up responses while they decode others, so that responses in progress can move. Trains it for a few
iterations under `colocate` and under `dynamic` through `yatt train`, in turn, with the same seeds. Compares the seconds of
`collect` and the collected samples.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from examples.judge.folder import make_judge
from examples.judge.recipe import NETWORK, TRAINING
from yatt_core.spec import load_spec

SPEC = Path(__file__).parent.parent / "configs" / "genrm.yaml"
MODES = ("colocate", "dynamic")
ROUNDS = 3
ITERATIONS = 12
FIRST = 3
"""The first iteration that counts: before it, processes warm up and the policy has no telemetry to plan with."""
POSITIONS = 2048
LONG = (
    # Without training, each token ends a text with the probability of one in the vocabulary: lengths are geometric.
    "sft=null",
    "trainer.optimizer.learning_rate=1.0e-9",
    f"model.max_positions={POSITIONS}",
    "data.prompts_per_iteration=16",
    "rollout.min_new_tokens=64",
    "rollout.max_new_tokens=640",
    "rollout.temperature=1.0",
    "rollout.engine={kind: torch, instances: 2, continuous: true, max_num_seqs: 64}",
    "rewards.parts.1.judgements=1",
    "rewards.parts.1.max_new_tokens=384",
    "rewards.parts.1.on_unparsed=zero",
    "placement.control_seconds=0.1",
    "evaluation.every=0",
)


def train(home: Path, changes: tuple[str, ...], mode: str, number: int) -> tuple[dict[str, Any], list[float]]:
    """Trains a run; returns its figures and the seconds that each iteration's `collect` phase took.

    number: of the round, which is the run's seed.
    """
    name = f"{mode}-{number}"
    figures = trained(home, SPEC, (*changes, f"name={name}", f"seed={number}", f"placement.mode={mode}"))
    records = sorted((home / f"{name}-1" / "placement").rglob("i*.json"))
    return figures, [float(json.loads(path.read_text())["telemetry"]["collect_s"]) for path in records]


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each mode, in turn (default {ROUNDS})")
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of each run (default {ITERATIONS})"
    )
    arguments = parser.parse_args()
    seconds: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    digests: dict[str, list[str]] = {mode: [] for mode in MODES}
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        progress("making the judge")
        changes = (f"rewards.parts.1.model.path={home}/judge", *LONG, f"iterations={arguments.iterations}")
        make_judge(
            load_spec(SPEC, list(changes)),
            network=NETWORK.model_copy(update={"max_positions": POSITIONS}),
            training=TRAINING.model_copy(update={"max_steps": 1, "lr_warmup_steps": 0}),
        )
        load = load_average()
        for number in range(arguments.rounds):
            for mode in MODES:
                progress(f"{mode}: round {number + 1} of {arguments.rounds}")
                figures, found = train(Path(home), changes, mode, number)
                digests[mode].append(str(figures["experience_digest"]))
                seconds[mode].append(found)
    counted = {mode: [each for found in seconds[mode] for each in found[FIRST - 1 :]] for mode in MODES}
    medians = {mode: statistics.median(counted[mode]) for mode in MODES}
    report = Report(
        name="placement_real",
        figures={
            "dynamic_over_colocate": medians["dynamic"] / medians["colocate"],
            "collect_s_dynamic": medians["dynamic"],
            "experience_digest_equal": float(digests["colocate"] == digests["dynamic"]),
            "iterations": len(counted["dynamic"]),
        },
        seeds=list(range(arguments.rounds)),
        load=[load, load_average()],
        baselines={"collect_s_colocate": medians["colocate"]},
        details={"collect_s": seconds},
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
