"""Compares the real engines with transformers on the same work: generation, loading weights, and five updates.

Consumes nothing. Each part takes a folder with a small model and returns its figures and baselines; those of engines
that are not installed are None.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report
from benchmarks.generation import SEED, measure_torch, write_model
from benchmarks.training_gaps import measure_training
from benchmarks.vllm_generation import measure_torch_sync, measure_vllm

PARTS = (measure_torch, measure_torch_sync, measure_vllm, measure_training)


def measure() -> Report:
    """Measures all parts, one after the other."""
    load = [load_average()]
    figures = dict[str, float | None]()
    baselines = dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        folder = Path(name)
        write_model(folder)
        for part in PARTS:
            found, beside = part(folder)
            figures |= found
            baselines |= beside
    return Report(name="engines", figures=figures, seeds=[SEED], load=[*load, load_average()], baselines=baselines)


def main() -> None:
    """Runs the benchmark."""
    arguments = argument_parser(__doc__).parse_args()
    print_report(measure(), arguments.json)


if __name__ == "__main__":
    main()
