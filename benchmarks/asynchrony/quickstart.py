"""The quickstart's wall time with a mode of asynchrony over that without it, on real engines, same build, run by run in turn.

Consumes configs/quickstart.yaml. Trains it in empty homes, once with each mode in each round. Produces the ratio of the medians
of the iterations' seconds; iterations that evaluate or take a checkpoint are left out, and the first ones.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import progress, trained
from db.ledger import Ledger
from flows.run.home import Home

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
CORRECTED = "algorithm.importance_correction={kind: truncate, cap: 2.0}"
"""What a lag is meant to be used with; without a lag it is left out."""
MODES: Mapping[str, Sequence[str]] = {
    "off": (),
    "streamed": ("asynchrony.streamed=true",),
    "lag1": ("asynchrony.lag=1", CORRECTED),
}
SKIPPED = 3
"""The first iterations, in which processes still load what they need and a lag is still filled."""


def quickstart_ratios(rounds: int, iterations: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Returns each mode's seconds of an iteration over those without it, and all medians by mode.

    rounds: how often each mode is run.
    """
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode, changes in MODES.items():
            progress(f"the quickstart, {mode}, round {number + 1} of {rounds}")
            seconds[mode].append(iteration_seconds([f"iterations={iterations}", *changes]))
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    ratios = {f"quickstart_ratio_{mode}": medians[mode] / medians["off"] for mode in MODES if mode != "off"}
    return ratios, seconds


def iteration_seconds(changes: Sequence[str]) -> float:
    """Returns the median seconds from commit to commit of a run of the quickstart."""
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as folder:
        home = Home(Path(folder))
        trained(home.folder, QUICKSTART, changes)
        with Ledger.open(home.ledger) as ledger:
            (run,) = (line.run.id for line in ledger.overview.runs())
            whole = dict(ledger.metrics.history(run, "seconds/iteration"))
            others = [dict(ledger.metrics.history(run, f"seconds/{phase}")) for phase in ("evaluate", "checkpoint")]
    plain = [value for step, value in whole.items() if step > SKIPPED and not any(step in each for each in others)]
    return statistics.median(plain)
