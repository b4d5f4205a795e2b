"""A process that checks claims, one after another, by their keys.

Consumes keys, one a line, on standard input, and a place as arguments. Produces one line of JSON for each on standard output:
`holds`, `said` and `figures`. What goes wrong in a check ends the process, as a fault of a GPU does anyway, with its reason last
on standard error, to which libraries' own output goes too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.claims import CLAIMS, Place


def main() -> None:
    """Checks the claims."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--device", action="append")
    arguments = parser.parse_args()
    place = Place(arguments.folder, tuple(arguments.device), arguments.stand_in)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    claims = {claim.key: claim for claim in CLAIMS}
    for line in sys.stdin:
        claim = claims[line.strip()]
        check = vars(importlib.import_module(f"{__package__}.{claim.module}"))[claim.check]
        answers.write(json.dumps(asdict(check(place, *claim.options))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
