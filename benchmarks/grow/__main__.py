"""Do runs grow beyond one device and one machine without needing more of anything than their share?

Consumes nothing; each module of this package measures one part and says how. Files are below `.tmp` in the repository,
and are deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.grow.checkpoints import checkpoint_figures
from benchmarks.grow.learning import learning_figures
from benchmarks.grow.loading import loading_figures
from benchmarks.grow.models import SEED
from benchmarks.grow.plan_lines import plan_figures
from benchmarks.grow.transfers import transfer_figures

Figures = dict[str, float | None]
Measure = Callable[[Path], tuple[Figures, dict[str, Any]]]
"""(an empty folder) -> figures, and the details from which they were computed."""

MEASURES: Mapping[str, Measure] = {
    "checkpoints": checkpoint_figures,
    "loading": loading_figures,
    "learning": learning_figures,
    "transfers": transfer_figures,
    "plan": plan_figures,
}
FILES = Path(__file__).parents[2] / ".tmp"


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=sorted(MEASURES), default=list(MEASURES), help="some measures")
    arguments = parser.parse_args()
    load = [load_average()]
    figures = Figures()
    details = dict[str, Any]()
    FILES.mkdir(exist_ok=True)
    for name in arguments.only:
        progress(name)
        with tempfile.TemporaryDirectory(prefix="grow-", dir=FILES) as folder:
            found, details[name] = MEASURES[name](Path(folder))
        figures |= found
    print_report(Report("grow", figures, [SEED], [*load, load_average()], details=details), arguments.json)


if __name__ == "__main__":
    main()
