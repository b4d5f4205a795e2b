"""Does the quickstart learn from its rewards, or from something else? Compares it with a run whose advantages are shuffled.

Consumes configs/quickstart.yaml. Trains it twice per seed through `yatt train`, once unchanged and once with the
advantages permuted over the batch (seeded), and compares how far the held-out accuracy rises above the accuracy after
SFT.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained

SPEC = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
CONTROL = "algorithm.permute_advantages=true"


def gain(figures: dict[str, Any]) -> float:
    """Returns the final accuracy minus the accuracy after SFT."""
    return float(figures["accuracy"] - figures["accuracy_sft"])


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds to train with (default: 0)")
    arguments = parser.parse_args()
    load = [load_average()]
    runs = []
    controls = []
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        for seed in arguments.seeds:
            progress(f"seed {seed}: the quickstart")
            runs.append(trained(Path(home), SPEC, [f"seed={seed}"]))
            progress(f"seed {seed}: the same with its advantages shuffled")
            controls.append(trained(Path(home), SPEC, [f"seed={seed}", CONTROL]))
    report = Report(
        name="control",
        figures={"gain": mean(map(gain, runs)), "gain_control": mean(map(gain, controls))},
        seeds=arguments.seeds,
        load=[*load, load_average()],
        baselines={"accuracy_sft": [run["accuracy_sft"] for run in runs]},
        details={"runs": runs, "controls": controls},
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
