"""Process identity beyond the pid, and ending all members of a session."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest

from tests.waiting import wait_until
from yatt_core.supervisor.process import (
    ProcessIdentity,
    end_sessions,
    identity_of,
    is_alive,
    send_signal,
    session_members,
)

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper():
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def identity(process: subprocess.Popen) -> ProcessIdentity:
    found = identity_of(process.pid)
    assert found is not None
    return found


def test_identity_is_unique_to_a_process_and_a_boot(sleeper):
    found = identity(sleeper)
    assert is_alive(found)
    assert is_alive(ProcessIdentity.current())
    assert abs(psutil.boot_time() + found.start_time - psutil.Process(sleeper.pid).create_time()) < 2
    for stranger in (
        replace(found, host="elsewhere"),
        replace(found, boot_id="earlier"),
        replace(found, start_time=found.start_time - 1),
    ):
        assert not is_alive(stranger)


def test_zombie_is_dead(sleeper):
    found = identity(sleeper)
    sleeper.kill()
    wait_until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_alive(found)


OUTLIVED = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_ended_lives_until_the_others_end():
    """The process looks like a zombie but still holds its ports and files; a killed one briefly looks the same."""
    with subprocess.Popen([sys.executable, "-c", OUTLIVED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        found = identity(process)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert is_alive(found)
        assert send_signal(found, signal.SIGKILL)
        wait_until(lambda: not is_alive(found))
        assert process.wait() == -signal.SIGKILL


def test_a_reused_pid_is_never_signalled(sleeper):
    earlier = replace(identity(sleeper), start_time=1.0)
    assert not send_signal(earlier, signal.SIGKILL)
    assert end_sessions([earlier], "YATT_TEST=nobody:", grace=0.0) == 0
    time.sleep(0.05)
    assert sleeper.poll() is None


def test_a_pid_that_now_belongs_to_a_thread_is_not_signalled():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert not send_signal(replace(ProcessIdentity.current(), pid=thread.native_id), signal.SIGKILL)
    finally:
        over.set()
        thread.join()


def test_end_reaches_other_groups_other_sessions_and_orphans(tmp_path):
    """Like Ray: workers in their own process groups, and children whose parent is already gone."""
    code = """
import os, subprocess, sys, time
sleep = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']
subprocess.Popen(sleep, process_group=0)
subprocess.Popen(sleep, start_new_session=True)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    subprocess.Popen(sleep)
    os._exit(0)
os.waitpid(child, 0)
print('on', flush=True)
time.sleep(600)
"""
    mark = f"YATT_TEST={tmp_path}:"
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        start_new_session=True,
        stdout=subprocess.PIPE,
        env={"YATT_TEST": f"{tmp_path}:x"},
    )
    leader.stdout.readline()
    found = identity(leader)
    assert len(session_members([leader.pid], mark)) == 4
    assert end_sessions([found], mark, grace=0.1) == 4
    assert session_members([leader.pid], mark) == []
    leader.wait()
    leader.stdout.close()


def test_a_session_is_found_after_its_leader_ended():
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])"
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read(); " + code],
        start_new_session=True,
        stdin=subprocess.PIPE,
    )
    found = identity(leader)
    leader.communicate()
    assert end_sessions([found], "YATT_TEST=nobody:", grace=0.0) == 1
