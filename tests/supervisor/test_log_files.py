"""Logs of services: bounded while their writer continues, even on a full disk."""

import shutil
import subprocess
import sys
import time

import pytest

from tests.waiting import wait_until
from yatt_core.supervisor import runner
from yatt_core.supervisor.log_files import keep_bounded
from yatt_core.supervisor.runner import ServiceRunner
from yatt_core.supervisor.services import RestartPolicy, ServiceSpec, ServiceState

TALKS = "import time\nfor n in range(10**9): print('line', n, flush=True); time.sleep(0.001)"


def test_a_writer_continues_in_the_truncated_file(tmp_path):
    log = tmp_path / "a.log"
    with log.open("ab") as stream:
        writer = subprocess.Popen([sys.executable, "-c", TALKS], stdout=stream)
    try:
        for turn in range(2):
            while not log.exists() or log.stat().st_size < 4000:
                time.sleep(0.01)
            assert not keep_bounded(log, 10**6)
            assert keep_bounded(log, 3000), turn
        wait_until(lambda: log.stat().st_size > 0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]
        kept = (tmp_path / "a.log.1").read_text().splitlines()
        written = log.read_text().splitlines()
        assert kept[0].startswith("line") and not kept[0].endswith(" 0"), "the second copy replaces the first one"
        assert int(written[-1].split()[1]) > int(kept[-2].split()[1]) and "\0" not in log.read_text()
    finally:
        writer.kill()
        writer.wait()


def test_a_full_disk_leaves_the_log_unchanged(tmp_path, monkeypatch):
    log = tmp_path / "a.log"
    log.write_text("x" * 100)

    def full(source, target):
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        keep_bounded(log, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"] and len(log.read_text()) == 100


def test_the_log_of_a_verbose_service_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(runner, "LOG_BYTES", 2000)
    log = tmp_path / "talker.log"
    service = ServiceSpec(
        name="talker", argv=(sys.executable, "-c", TALKS), environment={}, ready="log:line", log_file=str(log)
    )
    talker = ServiceRunner(service, f"YATT_TEST_LOG={tmp_path}:", RestartPolicy())
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "talker.log.1").exists() and time.monotonic() < deadline:
            talker.step(time.monotonic())
            time.sleep(0.05)
        assert talker.life.state is ServiceState.READY and (tmp_path / "talker.log.1").exists()
    finally:
        talker.end()
