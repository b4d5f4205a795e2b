"""A driver's output outlives its reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRIVER = """
import logging, os, stat, sys, time
from pathlib import Path
from prefect.logging.handlers import PrefectConsoleHandler
from ops.process import outlive_readers

logging.getLogger().addHandler(PrefectConsoleHandler(stream=sys.stderr))
if sys.argv[2] == "outlive":
    outlive_readers(Path(sys.argv[1]))
print("begun", flush=True)
sys.stdin.readline()
while sys.argv[2] == "outlive" and any(stat.S_ISFIFO(os.fstat(number).st_mode) for number in (1, 2)):
    time.sleep(0.01)
logging.getLogger().warning("a line that nobody reads")
print("another one", flush=True)
"""


def driver(log: Path, how: str) -> int:
    """Returns the exit code of a process whose reader closes before the process writes."""
    command = [sys.executable, "-c", DRIVER, str(log), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == b"begun\n"
        process.stdout.close()
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        return process.wait(60)


def test_output_without_a_reader_goes_to_a_file(tmp_path: Path) -> None:
    assert driver(tmp_path / "window.log", "outlive") == 0
    said = (tmp_path / "window.log").read_text()
    assert "a line that nobody reads" in said and "another one" in said


def test_without_it_the_first_unread_line_ends_the_process(tmp_path: Path) -> None:
    assert driver(tmp_path / "window.log", "do not") != 0


def test_an_unwritable_folder_loses_lines_but_not_the_driver(tmp_path: Path) -> None:
    assert driver(tmp_path / "absent" / "window.log", "outlive") == 0
