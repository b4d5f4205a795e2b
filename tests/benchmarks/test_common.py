"""The report that every benchmark ends with."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.common import Report, argument_parser, file_to_write, print_report

REPORT = Report("demo", {"holds": 1.0, "ratio": 1.5}, [0, 1], [0.5, 0.7], {"other": 2.0})


def test_the_report_is_one_json_object_on_the_last_line(capsys):
    print_report(REPORT, as_json=True)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["figures"] == {"holds": 1.0, "ratio": 1.5}
    assert report["baselines"] == {"other": 2.0}
    assert report["seeds"] == [0, 1] and report["load"] == [0.5, 0.7]
    assert report["machine"]["cores"] >= 1 and report["machine"]["memory_gib"] > 0
    assert set(report["versions"]) >= {"python", "torch", "numpy"}


def test_without_json_a_table_is_printed(capsys):
    print_report(REPORT, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("demo (")
    assert [line.split() for line in lines[1:]] == [
        ["figures", "holds", "1"],
        ["figures", "ratio", "1.5"],
        ["baselines", "other", "2"],
    ]


def test_json_is_asked_for():
    assert argument_parser("What it does.\nMore.").parse_args(["--json"]).json
    assert not argument_parser(None).parse_args([]).json


def test_a_file_that_could_not_be_written_at_the_end_is_refused_at_once(tmp_path: Path) -> None:
    for unusable in (tmp_path, tmp_path / "missing" / "gpu.json"):
        with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
            file_to_write(str(unusable))
    assert file_to_write(str(tmp_path / "gpu.json")) == tmp_path / "gpu.json"
    assert file_to_write("gpu.json") == Path("gpu.json")
