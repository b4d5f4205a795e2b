"""A home that an earlier build has left, as a backup that its own `yatt backup create` has made, and a spec of that build.

`home.tar.xz` was made by the build before models and data had names on the Hub (commit 5c3ac553, migration 0008, Prefect 3.9.1,
transformers 5.24.0): `small-1`, stopped after two of four iterations; `small-2`, the record of a sweep of two settings, whose
runs are `small-3` and `small-4`; `small-5`, which waits in the queue. Its runs have a `qwen2` model of 3,000 parameters, as
`small.yaml` had then. Each later change of the ledger, the spec or the folders is tried on it.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent
SPEC = FOLDER / "small.yaml"
RUN = "small-1"
SWEEP = "small-2"
QUEUED = "small-5"
TRIALS = ("small-3", "small-4")
WEIGHTS = "8dc4bf467910a6d2605d3d485d1dca51fc8d9a4864696b48e8148f3277"
"""Beginning of the digest of the weights of `small-1` after iteration 2."""


def unpack(place: Path) -> Path:
    """Unpacks the backup; returns its folder."""
    with tarfile.open(FOLDER / "home.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place / "backup"
