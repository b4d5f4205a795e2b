"""What does dynamic placement gain if policy and judge are real models and every core is a device?

Consumes configs/genrm.yaml. Trains its judge, and then the spec for a few iterations under `colocate` and under
`dynamic` through `yatt train`, with the same seeds. Compares the duration of `collect` and the collected samples.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress, trained
from examples.judge.folder import make_judge
from yatt_core.spec import load_spec

SPEC = Path(__file__).parent.parent / "configs" / "genrm.yaml"
MODES = ("colocate", "dynamic")
ITERATIONS = 12
FIRST = 3
"""The first iteration that counts: before it, processes warm up and the policy has no telemetry to plan with."""


def train(home: Path, judge: str, mode: str, iterations: int) -> tuple[dict[str, Any], list[float]]:
    """Trains a run; returns its figures and the seconds that each iteration's `collect` phase took.

    judge: the override that names the judge's folder.
    """
    changes = (f"name={mode}", f"placement.mode={mode}", f"iterations={iterations}", "evaluation.every=0")
    figures = trained(home, SPEC, (judge, *changes))
    records = sorted((home / f"{mode}-1" / "placement").rglob("i*.json"))
    return figures, [float(json.loads(path.read_text())["telemetry"]["collect_s"]) for path in records]


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of each run (default {ITERATIONS})"
    )
    arguments = parser.parse_args()
    seconds = dict[str, list[float]]()
    figures = dict[str, dict[str, Any]]()
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as home:
        progress("training the judge")
        judge = f"rewards.parts.1.model.path={home}/judge"
        make_judge(load_spec(SPEC, [judge]))
        load = load_average()
        for mode in MODES:
            progress(f"{mode}: {arguments.iterations} iterations")
            figures[mode], seconds[mode] = train(Path(home), judge, mode, arguments.iterations)
    totals = {mode: sum(seconds[mode][FIRST - 1 :]) for mode in MODES}
    equal = figures["colocate"]["experience_digest"] == figures["dynamic"]["experience_digest"]
    report = Report(
        name="placement_real",
        figures={
            "collect_ratio_dynamic_to_colocate": totals["dynamic"] / totals["colocate"],
            "collect_s_dynamic": totals["dynamic"],
            "experience_digest_equal": float(equal),
        },
        seeds=[load_spec(SPEC).seed],
        load=[load, load_average()],
        baselines={"collect_s_colocate": totals["colocate"]},
        details={"collect_s": seconds},
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
