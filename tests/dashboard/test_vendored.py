"""Vendored files match their lists unchanged and have their licences; our own files name no other host."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ops.web.templating import OPS, STATIC

BROWSER_TESTS = Path(__file__).parent.parent / "browser" / "vendor"
ROW = re.compile(r"\| `(?P<file>[^`]+)` \| [^|]+ \| `[^`]+` \| `(?P<sha256>[0-9a-f]{64})` \|")
SVG = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("folder", [STATIC / "vendor", BROWSER_TESTS], ids=["pages", "tests"])
def test_each_vendored_file_is_listed_unchanged_and_licensed(folder: Path) -> None:
    listed = {row["file"]: row["sha256"] for row in ROW.finditer((folder / "README.md").read_text())}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"README.md"}
    assert listed.keys() == found
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
        assert (folder / name).with_name("LICENSE").is_file()


def test_our_own_files_name_no_other_host() -> None:
    kinds = (".html", ".js", ".css", ".svg")
    own = [path for path in OPS.rglob("*") if path.suffix in kinds and "vendor" not in path.parts]
    assert len(own) > 15
    for path in own:
        text = path.read_text().replace(SVG, "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|\burl\(", text), path
