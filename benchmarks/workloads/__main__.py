"""What do the trainings of `examples/workloads` reach, each compared with its own controls?

Each subject trains its workloads in this process, without YATT's services: what they compute is the same, whoever calls them.
`--work` keeps what is finished, and a later call goes on; `--subjects` and `--seeds` divide the work between processes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report

PACKAGE = Path(__file__).parents[2] / "examples" / "workloads"
SUBJECTS = ("retrieval", "kge", "unimp")


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, help="folder that keeps finished figures (default: a temporary one)")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds, instead of each subject's own")
    parser.add_argument(
        "--curves", type=Path, metavar="PAGES", help="draw curves for the docs instead, below this folder"
    )
    options = parser.parse_args()
    if str(PACKAGE) not in sys.path:
        sys.path.append(str(PACKAGE))
    load = [load_average()]
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        if options.curves is not None:
            import_module("benchmarks.workloads.curves").draw_curves(work, options.curves, options.subjects)
            return
        found = {name: _measured(name, work, options.seeds) for name in options.subjects}
    report = Report(
        name="workloads",
        figures={key: value for one in found.values() for key, value in one["figures"].items()},
        baselines={key: value for one in found.values() for key, value in one["baselines"].items()},
        details={name: one["details"] for name, one in found.items()},
        seeds=sorted({seed for one in found.values() for seed in one["seeds"]}),
        load=[*load, load_average()],
    )
    print_report(report, options.json)


def _measured(name: str, work: Path, seeds: Sequence[int] | None) -> Mapping[str, Any]:
    """Returns the findings of a subject: its module has `SEEDS` and `measure`."""
    subject = import_module(f"benchmarks.workloads.{name}")
    own: Sequence[int] = seeds or subject.SEEDS
    measure: Callable[[Path, Sequence[int]], Any] = subject.measure
    found = measure(work, own)
    return {"figures": found.figures, "baselines": found.baselines, "details": found.details, "seeds": own}


if __name__ == "__main__":
    main()
