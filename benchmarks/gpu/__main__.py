"""What holds on this machine's GPUs of all that is claimed of GPUs? One command, at most five minutes, one JSON at the end.

Consumes the GPUs; without one it reports this and exits with code 2, unless `--stand-in` lets cores and host memory take their
place, with small sizes. Needs torch, transformers, numpy, pyarrow, pydantic, ruamel.yaml and megatron-core, but not the rest of
what YATT installs, nor YATT's own installation. Each claim is a line as it comes; `--write FILE` keeps the report of what there
is so far. Exits with 1 if a claim fails.

- `holds_KEY`: 1 holds, 0 fails, None not run, or needs two GPUs; `details` has the state, the reason and the figures of each;
- the figures of the claims themselves, with the claim's key after the name, except for measures of speed.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.common import Report, argument_parser, file_to_write, load_average, print_report, progress
from benchmarks.gpu.claims import CLAIMS, Claim, Place
from benchmarks.gpu.courses import CORES, VISIBLE
from benchmarks.gpu.runner import FAILS, HOLDS, NOT_RUN, Outcome, outcomes
from benchmarks.gpu.work import SEED
from yatt_core.errors import ExitCode

MINUTES = 5.0
STAND_INS = (CORES, CORES)
NO_GPU = (
    "benchmarks.gpu: torch sees no GPU here (torch.cuda.is_available() is false), so there is nothing to measure; `yatt doctor` "
    "says what is missing, and --stand-in runs everything on cores"
)
HELD: Mapping[str, float | None] = {HOLDS: 1.0, FAILS: 0.0}
WITHOUT_KEY = frozenset(claim.key for claim in CLAIMS if claim.module == "speed")
"""Claims of which each has figures of its own."""
RATES = ("memory_sync_gb_s", "nccl_sync_gb_s")
BASELINES = ("gemm_tflop_s_bf16", "card_tflop_s_bf16")


def devices_here() -> tuple[str, ...]:
    """Returns the names of the GPUs that this process sees, as in `CUDA_VISIBLE_DEVICES`."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return tuple(named.split(",")[:count]) if named else tuple(str(number) for number in range(count))


def checked(
    claims: Sequence[Claim], devices: tuple[str, ...], minutes: float, stand_in: bool, kept: Path | None
) -> Report:
    """Checks claims, one line each. kept: file that has the report of what there is so far; None for no file."""
    load = load_average()
    begun = time.monotonic()
    found = {claim.key: Outcome(NOT_RUN, "it was interrupted before") for claim in claims}
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        place = Place(Path(name), devices, stand_in)
        done = outcomes(claims, place, begun + 60.0 * minutes)
        try:
            for number, (claim, outcome) in enumerate(done, start=1):
                found[claim.key] = outcome
                line = line_of(
                    number=number,
                    count=len(claims),
                    seconds=time.monotonic() - begun,
                    claim=claim,
                    outcome=outcome,
                )
                progress(line)
                if kept is not None:
                    kept.write_text(json.dumps(asdict(report_of(found, load, stand_in))), encoding="utf-8")
        except KeyboardInterrupt:
            progress("interrupted: what there is so far follows")
        finally:
            done.close()
    states = Counter(outcome.state for outcome in found.values())
    progress(", ".join(f"{count} {state}" for state, count in states.most_common()))
    return report_of(found, load, stand_in)


def line_of(number: int, count: int, seconds: float, claim: Claim, outcome: Outcome) -> str:
    """Returns the line of a claim: how far things are, its state, its key and the reason."""
    return f"[{number:2}/{count} {seconds:4.0f} s] {outcome.state:<14} {claim.key:<36} {outcome.reason}"


def report_of(found: Mapping[str, Outcome], load: float, stand_in: bool) -> Report:
    """Returns the report of outcomes by key."""
    figures = {f"holds_{key}": HELD.get(outcome.state) for key, outcome in found.items()}
    baselines = dict[str, float | None]()
    for key, outcome in found.items():
        for name, value in outcome.figures.items():
            kept = baselines if name in BASELINES else figures
            kept[name if key in WITHOUT_KEY or name in RATES else f"{name}_{key}"] = value
    details = {
        "claims": {key: asdict(outcome) for key, outcome in found.items()},
        "stand_in": stand_in,
    }
    return Report(
        name="gpu",
        figures=figures,
        seeds=[SEED],
        load=[load, load_average()],
        baselines=baselines,
        details=details,
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--stand-in", action="store_true", help="cores and host memory take the place of GPUs, with small sizes"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="begin nothing after these (default: %(default)g)"
    )
    parser.add_argument("--only", nargs="+", metavar="KEY", help="check only these claims")
    parser.add_argument("--write", type=file_to_write, metavar="FILE", help="keep the report of what there is so far")
    arguments = parser.parse_args()
    if not 0.0 < arguments.minutes < math.inf:
        parser.error(f"--minutes: {arguments.minutes:g} leaves no time for a claim; expected a number above 0")
    known = {claim.key: claim for claim in CLAIMS}
    if unknown := sorted(set(arguments.only or ()) - known.keys()):
        parser.error(f"--only: there are no claims {', '.join(unknown)}; known: {', '.join(known)}")
    if not arguments.stand_in and not torch.cuda.is_available():
        progress(NO_GPU)
        sys.exit(ExitCode.CONFIGURATION)
    # What is there so far is printed then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    claims = [claim for claim in CLAIMS if arguments.only is None or claim.key in arguments.only]
    report = checked(
        claims=claims,
        devices=STAND_INS if arguments.stand_in else devices_here(),
        minutes=arguments.minutes,
        stand_in=arguments.stand_in,
        kept=arguments.write,
    )
    print_report(report, arguments.json)
    sys.exit(1 if any(report.figures[f"holds_{claim.key}"] == HELD[FAILS] for claim in claims) else 0)


if __name__ == "__main__":
    main()
