"""The revision of the running code."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_revision() -> str:
    """Returns a digest of this package's source files: identical for identical code, wherever it is installed."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
