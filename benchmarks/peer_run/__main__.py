"""What is the whole quickstart beside TRL's GRPOTrainer: seconds by iteration, where they go, and which accuracy after how long?

Consumes `configs/quickstart.yaml`. Its supervised fine-tuning is made once, and both sides begin with these weights. In each
round, our side is `yatt train` with all that belongs to it (Prefect, Ray, ledger, MLflow, evaluation, checkpoints) in an empty
home, and TRL's a process in an environment of its own, `build/peers`; the sides take turns at being first. Everything runs on the
same two cores.

    iteration_ratio_trl            TRL's wall seconds by iteration over ours, evaluations and checkpoints included
    step_share_of_iteration        the fraction of our iteration that is its step: generation, update, new weights
    accuracy_at_equal_seconds, accuracy_at_equal_seconds_trl
                                   held-out accuracy at the second at which our command ends, since each side's command began

Equal on both sides: weights and tokenizer, prompts of each iteration and their order, samples of each prompt, longest response,
temperature, reward, advantages, loss (the mean over all tokens, one optimizer step on all samples, no KL term), AdamW, learning
rate of each iteration, float32, held-out tasks with greedy answers, and the iterations that are evaluated and saved. TRL gets
what is fastest for it: as many processes and threads as are fastest in a short trial, all samples of a process as one
micro-batch, and prompts that are drawn and rendered beforehand; ours draws and checks them in its start.

Not equal: the samples, since each side draws its own; two engines, two trainer ranks and two controllers here, and processes
that both sample and train there; TRL is given greedy evaluation as a callback, since its own samples; it keeps metrics in its
state alone, and neither samples nor a ledger.

`--docs` writes the picture of docs/benchmarks.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peer_environment
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.peer_run import ours, theirs
from benchmarks.peer_run.measured import Measured, Round, baselines_of, figures_of, mean_parts
from benchmarks.peer_run.picture import PICTURE, draw
from benchmarks.peer_run.theirs import Finished, Layout
from yatt_core.spec import load_spec

CORES = 2
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, ready to train from the same weights.

    folder: for what TRL writes.
    start: the folder of the weights.
    request: of TRL's runs, but for the layout.
    """

    folder: Path
    start: Path
    iterations: int
    seed: int
    request: Mapping[str, Any]

    @classmethod
    def prepared(cls, folder: Path, iterations: int, seed: int) -> Sides:
        """Makes the weights and the prompts."""
        progress("the weights with which both sides begin")
        start = folder / "start"
        ours.fine_tune(start, seed)
        request = theirs.request_of(ours.spec_of(start, iterations, seed), folder / "inputs")
        return cls(folder=folder, start=start, iterations=iterations, seed=seed, request=request)

    def tried(self) -> dict[Layout, float]:
        """Returns the seconds of an iteration of TRL by layout, in short runs."""
        found = {}
        for layout in theirs.LAYOUTS:
            found[layout] = theirs.tried_seconds(self.request, layout, self.folder / f"tried-{layout}")
            progress(f"TRL with {layout} (processes x threads): {1000 * found[layout]:.0f} ms an iteration")
        return found

    def take(self, number: int, layout: Layout) -> tuple[Round, Mapping[str, str]]:
        """Takes a round, in which TRL is first if the number is odd; also returns the versions of TRL's libraries."""
        if number % 2:
            finished = self._trl(number, layout)
            own = self._own()
        else:
            own = self._own()
            finished = self._trl(number, layout)
        return Round(own, finished.measured), finished.versions

    def _own(self) -> Measured:
        measured = ours.train(self.start, self.iterations, self.seed)
        progress(f"YATT: {said(measured)}")
        return measured

    def _trl(self, number: int, layout: Layout) -> Finished:
        finished = theirs.train(self.request, layout, self.folder / f"trl-{number}")
        progress(f"TRL: {said(finished.measured)}")
        return finished


def said(measured: Measured) -> str:
    """Returns a run in a line."""
    first = measured.accuracies[0]
    last = measured.accuracies[-1]
    return (
        f"{measured.seconds:.0f} s, {1000 * measured.iteration_seconds:.0f} ms an iteration, "
        f"accuracy {first.accuracy:.3f} -> {last.accuracy:.3f}"
    )


def report_of(
    rounds: Sequence[Round],
    tried: Mapping[Layout, float],
    versions: Mapping[str, str],
    seed: int,
    load: Sequence[float],
) -> Report:
    """Returns the report on rounds.

    tried: seconds of an iteration of TRL by layout.
    versions: of TRL's libraries.
    """
    details: dict[str, Any] = {
        "rounds": [{"ours": asdict(each.ours), "trl": asdict(each.trl)} for each in rounds],
        "parts_s": mean_parts([each.ours for each in rounds]),
        "parts_s_trl": mean_parts([each.trl for each in rounds]),
        "layouts_s_trl": {str(layout): seconds for layout, seconds in tried.items()},
        "versions_trl": dict(versions),
    }
    return Report(
        name="peer_run",
        figures=figures_of(rounds),
        seeds=[seed],
        load=load,
        baselines=baselines_of(rounds),
        details=details,
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    quickstart = load_spec(ours.SPEC)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each side (default: {ROUNDS})")
    parser.add_argument(
        "--iterations", type=int, default=quickstart.iterations, help=f"of a run (default: {quickstart.iterations})"
    )
    parser.add_argument("--seed", type=int, default=quickstart.seed, help=f"default: {quickstart.seed}")
    parser.add_argument("--docs", type=Path, help="folder of the pages whose picture is written")
    arguments = parser.parse_args()
    peer_environment.make()
    # Both sides' processes inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    load = [load_average()]
    with tempfile.TemporaryDirectory(prefix="yatt-peer-") as name:
        sides = Sides.prepared(Path(name), arguments.iterations, arguments.seed)
        tried = sides.tried()
        layout = min(tried, key=lambda each: tried[each])
        rounds = []
        versions: Mapping[str, str] = {}
        for number in range(arguments.rounds):
            progress(f"round {number + 1} of {arguments.rounds}")
            taken, versions = sides.take(number, layout)
            rounds.append(taken)
    if arguments.docs is not None:
        draw(rounds, arguments.docs / PICTURE)
    report = report_of(rounds=rounds, tried=tried, versions=versions, seed=arguments.seed, load=[*load, load_average()])
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
