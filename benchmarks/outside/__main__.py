"""What becomes of runs while what is outside of YATT is away: judge, tool, object store, MLflow, Prefect, ledger and nodes?

Consumes a seed and a number of minutes. Drives real runs of `outside.yaml`, with the defaults of `recovery`, on two hosts of this
machine, and takes away what is on a third one, and one of the hosts, by a seeded plan; then drives an undisturbed run of as many
iterations. Produces the figures of `report`. Exits with 1 if the promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.outside import services
from benchmarks.outside.drive import Say, struck_run, undisturbed
from benchmarks.outside.report import Runs, details_of, figures_of, holds
from benchmarks.outside.schedule import FIXED_MINUTES, Kind, Plan, only, plan, short_plan
from flows.run.home import LEDGER_VARIABLE
from tests.hosts.campaign.bed import Bed
from tests.hosts.campaign.storage import BUCKET
from tests.hosts.network import NoHostsError
from yatt_core.errors import ExitCode, YattError
from yatt_core.spec import load_spec

SPEC = Path(__file__).parent / "outside.yaml"
MINUTES = 75.0
COMPUTE = 2
"""Hosts that compute: one that is lost has no spare."""
MASKING_SHARE = 0.85
"""Fraction of the time for outages after which the first run gets no further slot."""


def campaign(folder: Path, planned: Plan, seed: int, minutes: float, overrides: Sequence[str], say: Say) -> Runs:
    """Drives the runs of a campaign; the folder keeps their files."""
    os.environ[services.SEED_VARIABLE] = str(seed)
    try:
        with Bed(folder, store=False, compute=COMPUTE, services=services.__name__) as bed:
            os.environ[LEDGER_VARIABLE] = bed.ledger
            spec = load_spec(SPEC, [f"seed={seed}", f"storage.url=s3://{BUCKET}/runs", *overrides])
            until = time.monotonic() + 60.0 * (minutes - FIXED_MINUTES)
            struck = struck_run(
                bed=bed,
                spec=spec,
                slots=planned.unmasked,
                say=say,
                until=time.monotonic() + MASKING_SHARE * (until - time.monotonic()),
            )
            masked = (
                struck_run(bed=bed, spec=spec, slots=planned.masking, say=say, until=until) if planned.masking else None
            )
            quiet = undisturbed(bed, spec, max(1, struck.seen.iteration), say)
            return Runs.read(
                address=bed.ledger,
                home=bed.home,
                requests=folder / "storage" / services.REQUESTS,
                spec=spec,
                struck=struck,
                masked=masked,
                quiet=quiet,
            )
    finally:
        os.environ.pop(LEDGER_VARIABLE, None)
        os.environ.pop(services.SEED_VARIABLE, None)


def told_plan(planned: Plan) -> None:
    """Prints what will be away, and how long that takes."""
    counts = ", ".join(f"{count} of {length}" for length, count in planned.counts().items())
    progress(f"{len(planned.outages)} outages ({counts}), {planned.seconds / 60:.0f} minutes")
    for title, slots in (("compared", planned.unmasked), ("may be masked", planned.masking)):
        for slot in slots:
            progress(f"  {title}: " + ", ".join(f"{outage} at {outage.start:.0f} s" for outage in slot))


def main() -> int:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="determines the outages and which requests fail")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for everything (default: {MINUTES:g})")
    parser.add_argument("--short", action="store_true", help="each thing is away once, in some minutes")
    parser.add_argument(
        "--kinds", type=Kind, nargs="+", choices=list(Kind), default=list(Kind), help="only these are away"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON object to this file, too")
    arguments = parser.parse_args()
    try:
        planned = only(
            short_plan(arguments.seed) if arguments.short else plan(arguments.seed, arguments.minutes), arguments.kinds
        )
    except ValueError as error:
        parser.error(str(error))
    told_plan(planned)
    if arguments.plan:
        return ExitCode.OK
    return measured(planned, arguments)


def measured(planned: Plan, arguments: argparse.Namespace) -> int:
    """Drives the campaign and prints its report."""
    # Ending the campaign also ends its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="outside-"))
    load = load_average()
    began = time.monotonic()

    def say(line: str) -> None:
        progress(f"{time.strftime('%H:%M:%S')} {line}")

    try:
        runs = campaign(
            folder=folder,
            planned=planned,
            seed=arguments.seed,
            minutes=arguments.minutes,
            overrides=arguments.set,
            say=say,
        )
        figures = figures_of(runs)
        details = details_of(runs)
    except NoHostsError as error:
        sys.stderr.write(f"hosts cannot be simulated here: {error}\n")
        return ExitCode.FAILURE
    except YattError as error:
        sys.stderr.write(f"error: {error}\nthe files are in {folder}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; the files are in {folder}\n")
        return ExitCode.INTERRUPTED
    figures["minutes"] = round((time.monotonic() - began) / 60, 1)
    report = Report("outside", figures, [arguments.seed], [load, load_average()], details=details)
    fine = holds(figures)
    if fine:
        shutil.rmtree(folder)
    else:
        progress(f"kept for inspection: {folder}")
    if arguments.output:
        arguments.output.write_text(json.dumps(asdict(report), indent=1) + "\n")
    print_report(report, arguments.json)
    return ExitCode.OK if fine else ExitCode.FAILURE


if __name__ == "__main__":
    sys.exit(main())
