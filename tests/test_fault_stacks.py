"""Stacks of a process that hangs in native code: by py-spy, and without the right to trace by its own interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core import fault_stacks
from yatt_core.fault_stacks import KEPT, KEPT_FILES, dump_stacks, kept_stacks, prune_kept, standby_file

HANGS = """
import sys
from pathlib import Path
from yatt_core.fault_stacks import stand_by
stand_by(Path(sys.argv[1]), "trainer-0")
import ctypes

def hangs_in_native_code():
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock, so no Python thread could answer

print("ready", flush=True)
hangs_in_native_code()
"""


@contextmanager
def process_that_hangs(run_folder: Path) -> Iterator[int]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HANGS, str(run_folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        yield process.pid
        process.kill()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[int]:
    with process_that_hangs(tmp_path) as pid:
        yield pid


def test_native_frames_are_there(tmp_path: Path, hanging: int) -> None:
    said = dump_stacks(str(tmp_path), "trainer-0", hanging)
    if "no native stacks: py-spy was refused" in said:
        pytest.skip("this machine does not let py-spy trace a process")
    assert "hangs_in_native_code" in said and "nanosleep" in said
    assert standby_file(tmp_path, "trainer-0", hanging).read_text() == "", "no signal was needed"


@pytest.mark.parametrize("refusal", ["exit 1", "missing"])
def test_without_the_right_to_trace_the_interpreter_answers(
    tmp_path: Path, hanging: int, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    if refusal != "missing":
        spy = bin_folder / "py-spy"
        spy.write_text("#!/bin/sh\necho 'Error: Permission Denied: ptrace' >&2\nexit 1\n")
        spy.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    said = dump_stacks(str(tmp_path), "trainer-0", hanging)
    assert "hangs_in_native_code" in said, "Python stacks, although the process holds the interpreter's lock"
    expected = (
        "is not installed" if refusal == "missing" else "was refused (exit code 1): Error: Permission Denied: ptrace"
    )
    assert f"no native stacks: py-spy {expected}" in said


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    said = dump_stacks(str(tmp_path), "trainer-0", process.pid)
    assert "no native stacks" in said and "none: the process has not stood by" in said


def test_a_successor_replaces_the_files_of_an_actor(tmp_path: Path, hanging: int) -> None:
    wait_until(lambda: standby_file(tmp_path, "trainer-0", hanging).exists())
    (tmp_path / fault_stacks.STANDBY / "trainer-0.1.txt").write_text("old")
    (tmp_path / fault_stacks.STANDBY / "trainer-01.2.txt").write_text("of another")
    with process_that_hangs(tmp_path) as pid:
        names = {path.name for path in (tmp_path / fault_stacks.STANDBY).iterdir()}
    assert names == {f"trainer-0.{pid}.txt", "trainer-01.2.txt"}


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / KEPT).mkdir(parents=True)
    for number in range(KEPT_FILES + 5):
        (tmp_path / KEPT / f"i{number}.learn.trainer-0.{1000 + number}.txt").write_text("stack")
    prune_kept(tmp_path)
    kept = kept_stacks(tmp_path)
    assert (
        len(kept) == KEPT_FILES and kept[0] == f"{KEPT}/i{KEPT_FILES + 4}.learn.trainer-0.{1000 + KEPT_FILES + 4}.txt"
    )
