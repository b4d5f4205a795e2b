"""What do dynamic placement and lent devices gain with real models that write long texts, every core being a device?

Consumes configs/genrm.yaml, changed: a policy and a judge that have learnt nothing write texts whose lengths have a long tail,
and the engines take up responses while they decode others, so that responses in progress can move. Trains it for a few
iterations through `yatt train`, in turn, with the same seeds: under `colocate` and `dynamic`, and with a lag, the trainer
having a core of its own, or lending it. Compares seconds and the collected samples.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from db.ledger import Ledger
from examples.judge.folder import make_judge
from examples.judge.recipe import NETWORK, TRAINING
from flows.run.home import Home
from yatt_core.spec import load_spec

SPEC = Path(__file__).parent.parent / "configs" / "genrm.yaml"
CORRECTED = "algorithm.importance_correction={kind: truncate, cap: 2.0}"
"""What a lag is meant to be used with."""
LAG = ("asynchrony.lag=1", "trainer.engine.ranks=1", CORRECTED)
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
    "rewards.parts.1.judgements=1",
    "rewards.parts.1.max_new_tokens=384",
    "rewards.parts.1.on_unparsed=zero",
    "placement.control_seconds=0.1",
    "evaluation.every=0",
)


def engines(instances: int) -> str:
    """Returns the change that has so many engines."""
    return f"rollout.engine={{kind: torch, instances: {instances}, continuous: true, max_num_seqs: 64}}"


ARMS: Mapping[str, Sequence[str]] = {
    "colocate": (engines(2), "placement.mode=colocate"),
    "dynamic": (engines(2), "placement.mode=dynamic"),
    "split": (engines(1), "placement.mode=dynamic", "placement.trainer=apart", *LAG),
    "lent": (engines(2), "placement.mode=dynamic", "placement.trainer=lent", *LAG),
}
"""In `split` and `lent` one of the two cores is the trainer's."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A run. collect_s, iteration_s: seconds of each iteration's `collect`, and from commit to commit, without the first ones."""

    digest: str
    collect_s: list[float]
    iteration_s: list[float]


def train(home: Home, changes: Sequence[str], arm: str, number: int) -> Trained:
    """Trains a run. number: of the round, which is the run's seed."""
    name = f"{arm}-{number}"
    figures = trained(home.folder, SPEC, (*changes, *ARMS[arm], f"name={name}", f"seed={number}"))
    records = sorted((home.run_folder(f"{name}-1") / "placement").rglob("i*.json"))
    collect_s = [float(json.loads(path.read_text())["telemetry"]["collect_s"]) for path in records]
    with Ledger.open(home.ledger) as ledger:
        whole = ledger.metrics.history(f"{name}-1", "seconds/iteration")
    iteration_s = [seconds for step, seconds in whole if step >= FIRST]
    return Trained(str(figures["experience_digest"]), collect_s[FIRST - 1 :], iteration_s)


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each arm, in turn (default {ROUNDS})")
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of each run (default {ITERATIONS})"
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="what to run (default: everything)")
    arguments = parser.parse_args()
    runs: dict[str, list[Trained]] = {arm: [] for arm in arguments.arms}
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as folder:
        progress("making the judge")
        judge = f"rewards.parts.1.model.path={folder}/judge"
        changes = (judge, *LONG, f"iterations={arguments.iterations}")
        make_judge(
            load_spec(SPEC, [judge]),
            network=NETWORK.model_copy(update={"max_positions": POSITIONS}),
            training=TRAINING.model_copy(
                update={"demonstrations": 64, "batch_size": 16, "max_steps": 1, "lr_warmup_steps": 0}
            ),
        )
        load = load_average()
        for number in range(arguments.rounds):
            for arm in arguments.arms:
                progress(f"{arm}: round {number + 1} of {arguments.rounds}")
                runs[arm].append(train(Home(Path(folder)), changes, arm, number))
    collect_s = {arm: median_of(run.collect_s for run in found) for arm, found in runs.items()}
    iteration_s = {arm: median_of(run.iteration_s for run in found) for arm, found in runs.items()}
    report = Report(
        name="placement_real",
        figures={
            "dynamic_over_colocate": ratio(collect_s, "dynamic", "colocate"),
            "iteration_dynamic_over_colocate": ratio(iteration_s, "dynamic", "colocate"),
            "lent_over_split": ratio(iteration_s, "lent", "split"),
            "experience_digest_equal": equal_digests(runs),
            "iterations": min(sum(len(run.iteration_s) for run in found) for found in runs.values()),
        },
        seeds=list(range(arguments.rounds)),
        load=[load, load_average()],
        baselines={"collect_s": collect_s, "iteration_s": iteration_s},
        details={arm: [asdict(run) for run in found] for arm, found in runs.items()},
    )
    print_report(report, arguments.json)


def median_of(series: Iterable[Sequence[float]]) -> float:
    """Returns the median over all values of all series."""
    return statistics.median(value for values in series for value in values)


def ratio(seconds: Mapping[str, float], arm: str, baseline: str) -> float | None:
    """Returns the seconds of an arm over those of its baseline; None if one was not run."""
    return seconds[arm] / seconds[baseline] if arm in seconds and baseline in seconds else None


def equal_digests(runs: Mapping[str, Sequence[Trained]]) -> float:
    """Returns 1 if arms that differ in placement alone have collected the same samples, bit for bit; else 0."""
    pairs = (("colocate", "dynamic"), ("split", "lent"))
    digests = {arm: [run.digest for run in found] for arm, found in runs.items()}
    return float(all(digests[one] == digests[other] for one, other in pairs if one in digests and other in digests))


if __name__ == "__main__":
    main()
