"""Every test file is in one part, the parts are about equal, and a record says which have passed for which product."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verification import run
from tests.verification.parts import SECONDS, Part, files_of
from tests.verification.record import FILES, FOLDERS, ROOT, PartResult, Record, product_digest, result_of

TIMES = st.dictionaries(st.text("abc/_.", min_size=1, max_size=6), st.floats(0.1, 1000.0), max_size=40)


@given(TIMES, st.integers(1, 8))
def test_each_file_is_in_one_part_and_no_part_has_more_than_its_share_and_one_file(
    seconds: dict[str, float], of: int
) -> None:
    shares = [files_of(Part(number, of), seconds, seconds) for number in range(1, of + 1)]
    assert sorted(file for share in shares for file in share) == sorted(seconds)
    longest = max(seconds.values(), default=0.0)
    loads = [sum(seconds[file] for file in share) for share in shares]
    assert max(loads) <= sum(loads) / of + longest + 1e-6


def test_a_file_that_was_not_measured_counts_too() -> None:
    assert files_of(Part(2, 2), ["a", "b", "c"], {"a": 2.5 * SECONDS}) == ["b", "c"]


@pytest.mark.parametrize("text", ["0/6", "7/6", "2", "2/", "two/6", "2/0"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PART: expected"):
        Part.parse(text)
    command = [sys.executable, "-m", "tests.verification.run", text]
    if text == "7/6":
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert answer.returncode == 2 and "expected a number from 1 to 6" in answer.stderr


def product(folder: Path) -> Path:
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(name)
    (folder / "flows" / "train.py").write_text("train")
    return folder


def test_the_digest_is_that_of_the_product_and_not_of_its_tests(tmp_path: Path) -> None:
    root = product(tmp_path / "tree")
    digest = product_digest(root)
    (root / "tests").mkdir()
    (root / "tests" / "test_train.py").write_text("tests")
    (root / "flows" / "__pycache__").mkdir()
    (root / "flows" / "__pycache__" / "train.pyc").write_text("compiled")
    assert product_digest(root) == digest
    shutil.copy(root / "flows" / "train.py", root / "db" / "train.py")
    assert product_digest(root) != digest


def result(part: str, exit_code: int = 0) -> PartResult:
    return PartResult(
        part=part, passed=3, skipped=1, failures=(), seconds=60.0, exit_code=exit_code, files={"tests/test_a.py": 60.0}
    )


def test_records_of_the_same_product_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "RECORD", tmp_path / "build" / "verify.json")
    digest = product_digest()
    for number, (part, code) in enumerate((("1/3", 0), ("2/3", 0), ("3/3", 1))):
        Record(digest, {part: result(part, code)}).write(tmp_path / f"{number}.json")
    Record("another", {"3/3": result("3/3")}).write(tmp_path / "3.json")
    files = [tmp_path / f"{number}.json" for number in range(4)]
    assert run.join(files, of=3) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == ["3/3"]
    Record(digest, {"3/3": result("3/3")}).write(tmp_path / "3.json")
    assert run.join(files, of=3) == 0
    joined = Record.read(tmp_path / "build" / "verify.json")
    assert joined is not None and joined.missing(3) == []


def test_what_has_passed_is_not_repeated_and_what_has_failed_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    def run_part(part: Part, options: object) -> int:
        ran.append(str(part))
        return 1

    monkeypatch.setattr(run, "RECORD", tmp_path / "verify.json")
    monkeypatch.setattr(run, "run_part", run_part)
    Record(product_digest(), {"1/3": result("1/3"), "2/3": result("2/3", 1)}).write(run.RECORD)
    assert run.run_all(3, []) == 1
    assert ran == ["2/3", "3/3"]
    ran.clear()
    assert run.run_all(3, ["-k", "lease"]) == 1
    assert ran == ["1/3", "2/3", "3/3"], "with options other tests may run"


REPORT = """<testsuites><testsuite time="12.5">
<testcase file="tests/test_a.py" name="test_one" time="1.5"/>
<testcase file="tests/test_a.py" name="test_two" time="4.0"><failure/></testcase>
<testcase file="tests/test_b.py" name="test_three" time="0.5"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_says_what_failed_and_how_long_each_file_took(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = result_of(Part(1, 6), tmp_path / "report.xml", exit_code=1)
    assert (found.passed, found.skipped, found.failures) == (1, 1, ("tests/test_a.py::test_two",))
    assert found.files == {"tests/test_a.py": 5.5, "tests/test_b.py": 0.5}


def test_the_measured_files_exist() -> None:
    assert set(run.weights()) <= set(run.all_test_files())
