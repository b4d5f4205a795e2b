"""Runs all tests in parts: `python -m tests.verification.run 2/6`, or `all`, which goes on where it was interrupted.

Writes what passed to `build/verify.json`, with a digest of the product; `all` leaves out parts that have passed under the same
digest. `join FILE...` puts records of several machines together. Exit code 1 if a part has failed, or is missing after `join`;
2 for wrong arguments. `weigh` takes over how long each file took, by which parts are made equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.verification.parts import Part, files_of
from tests.verification.record import ROOT, Record, product_digest, result_of

RECORD = ROOT / "build" / "verify.json"
WEIGHTS = Path(__file__).parent / "seconds.json"
PARTS = 6
WORKERS = 3
TIMEOUT = 900
LONG = 5.0
"""Seconds from which a file's time is kept in `WEIGHTS`."""
NOTHING_FOUND = 5
"""Exit code of pytest that found no test."""


def all_test_files() -> list[str]:
    """Returns the names of all test files."""
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]


def weights() -> dict[str, float]:
    """Returns the seconds that long files have taken."""
    seconds: dict[str, float] = json.loads(WEIGHTS.read_text())
    return seconds


def run_part(part: Part, options: Sequence[str]) -> int:
    """Runs a part and records its result; returns pytest's exit code."""
    report = ROOT / "build" / f"verify-{part.number}-of-{part.of}.xml"
    report.unlink(missing_ok=True)
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / "verify"
    digest = product_digest()
    command = [
        *(sys.executable, "-m", "pytest", "-n", str(WORKERS), "--dist", "loadscope", f"--basetemp={folder}"),
        *("--timeout", str(TIMEOUT), "-o", "junit_family=xunit1", f"--junitxml={report}"),
        *options,
        *files_of(part, all_test_files(), weights()),
    ]
    sys.stderr.write(f"part {part} of the product {digest[:12]}\n")
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not report.exists() or code == NOTHING_FOUND:
        return code
    record = Record.read(RECORD)
    if record is None or record.digest != digest:
        record = Record(digest)
    # Options may have left tests out.
    if not options:
        record.results[str(part)] = result_of(part, report, code)
        record.write(RECORD)
    return code


def run_all(of: int, options: Sequence[str]) -> int:
    """Runs every part that has not passed for this state of the product; returns 1 if one fails."""
    codes = list[int]()
    for number in range(1, of + 1):
        part = Part(number, of)
        record = Record.read(RECORD)
        if not options and record is not None and record.digest == product_digest() and record.has_passed(part):
            sys.stderr.write(f"part {part} has passed already\n")
            continue
        codes.append(run_part(part, options))
    return 1 if any(codes) else 0


def join(files: Sequence[Path], of: int) -> int:
    """Puts records together; returns 1 unless they say that every part has passed, for this state of the product."""
    whole = Record(product_digest())
    for file in files:
        record = Record.read(file)
        if record is None or record.digest != whole.digest:
            sys.stderr.write(f"{file}: a record of another state of the product\n")
            continue
        whole.results |= record.results
    whole.write(RECORD)
    missing = whole.missing(of)
    passed = sum(result.passed for result in whole.results.values())
    seconds = sum(result.seconds for result in whole.results.values())
    summary = {"digest": whole.digest, "passed": passed, "seconds": round(seconds), "missing": missing}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 1 if missing else 0


def weigh(record: Record) -> None:
    """Keeps how long the files of a record took, beside what is known of others."""
    known = weights()
    for result in record.results.values():
        known |= result.files
    files = set(all_test_files())
    kept = {file: seconds for file, seconds in sorted(known.items()) if seconds >= LONG and file in files}
    WEIGHTS.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="a part such as 2/6, all, join, or weigh")
    parser.add_argument("files", nargs="*", type=Path, help="with join: records to put together")
    parser.add_argument("--of", type=int, default=PARTS, help=f"with all and join: number of parts (default: {PARTS})")
    arguments, options = parser.parse_known_args()
    if arguments.what == "join":
        return join(arguments.files, arguments.of)
    if arguments.what == "weigh":
        record = Record.read(RECORD)
        if record is None:
            parser.error(f"{RECORD}: not there; run a part first")
        weigh(record)
        return 0
    if arguments.what == "all":
        return run_all(arguments.of, options)
    try:
        part = Part.parse(arguments.what)
    except ValueError as error:
        parser.error(str(error))
    return run_part(part, options)


if __name__ == "__main__":
    sys.exit(main())
