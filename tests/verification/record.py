"""The record of verified parts, `build/verify.json`: which parts have passed, for which state of the product.

Consumes the product's files and pytest's reports. Results of another state of the product are forgotten, results of the same
state are kept: a change to the tests alone repeats nothing that has passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.verification.parts import Part

ROOT = Path(__file__).parents[2]
FOLDERS = ("clients", "configs", "db", "flows", "ops", "yatt", "yatt_core")
FILES = ("constraints.txt", "constraints-vllm.txt", "pyproject.toml", "setup.py")
"""What the product consists of: folders, and files that decide what is installed with it."""
IGNORED = ("__pycache__",)


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended.

    failures: ids of the tests that failed.
    exit_code: pytest's; a part has passed if it is 0.
    files: seconds of each test file.
    """

    part: str
    passed: int
    skipped: int
    failures: tuple[str, ...]
    seconds: float
    exit_code: int
    files: dict[str, float]


@dataclass(slots=True)
class Record:
    """The results for one state of the product."""

    digest: str
    results: dict[str, PartResult] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Returns the record in a file; None if there is none."""
        if not path.exists():
            return None
        plain = json.loads(path.read_text())
        found = (PartResult(**{**each, "failures": tuple(each["failures"])}) for each in plain["parts"])
        return cls(plain["digest"], {each.part: each for each in found})

    def write(self, path: Path) -> None:
        """Writes the record to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {"digest": self.digest, "parts": [asdict(each) for each in self.results.values()]}
        path.write_text(json.dumps(plain, indent=1) + "\n")

    def has_passed(self, part: Part) -> bool:
        """Returns True if a part has passed."""
        result = self.results.get(str(part))
        return result is not None and result.exit_code == 0

    def missing(self, of: int) -> list[str]:
        """Returns the parts that have not passed, of so many."""
        parts = (Part(number, of) for number in range(1, of + 1))
        return [str(part) for part in parts if not self.has_passed(part)]


def product_digest(root: Path = ROOT) -> str:
    """Returns the sha256 over the names and contents of the product's files."""
    digest = hashlib.sha256()
    for path in sorted(_product_files(root)):
        name = path.relative_to(root).as_posix()
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def _product_files(root: Path) -> Iterable[Path]:
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and not set(IGNORED) & set(path.parts):
                yield path
    yield from (root / name for name in FILES)


def result_of(part: Part, report: Path, exit_code: int) -> PartResult:
    """Returns a part's result from pytest's report in JUnit's format (`junit_family=xunit1`)."""
    suite: Any = ElementTree.parse(report).getroot().find("testsuite")
    files: dict[str, float] = {}
    failures = list[str]()
    skipped = 0
    cases = suite.findall("testcase")
    for case in cases:
        file = case.get("file")
        files[file] = files.get(file, 0.0) + float(case.get("time"))
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append(f"{file}::{case.get('name')}")
        skipped += case.find("skipped") is not None
    return PartResult(
        part=str(part),
        passed=len(cases) - len(failures) - skipped,
        skipped=skipped,
        failures=tuple(failures),
        seconds=float(suite.get("time")),
        exit_code=exit_code,
        files={file: round(seconds, 1) for file, seconds in sorted(files.items())},
    )
