"""`yatt up` in a terminal that closes: the group ends in order, as after Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from flows.run.home import Home
from ops.cli.commands.services.group import _ending
from tests.ops.group.group_tools import ANY, SECONDS, RealGroup
from yatt_core.supervisor.state import SupervisorFiles, read_state

UP = b"export PREFECT_API_URL="
"""The last output of the command once the group is up."""


@pytest.fixture
def group(home: Home) -> Iterator[RealGroup]:
    group = RealGroup(home, {})
    yield group
    group.close()
    assert group.processes() == 0


def read_until(terminal: int, text: bytes) -> None:
    """Waits until a terminal shows the text."""
    shown = b""
    deadline = time.monotonic() + SECONDS
    while text not in shown and time.monotonic() < deadline:
        shown += os.read(terminal, 4096)
    assert text in shown, shown.decode(errors="replace")


@pytest.mark.verify
def test_a_terminal_that_closes_ends_the_group_in_order(group: RealGroup) -> None:
    """The kernel and the shell both send SIGHUP, and output can no longer be written."""
    terminal = group.begin_in_terminal("up", *ANY)
    read_until(terminal, UP)
    assert group.processes() > 0
    os.close(terminal)
    group.await_status(lambda status: status["state"] == "down")
    assert group.processes() == 0
    last = read_state(SupervisorFiles.of(group.home.group))
    assert last is not None and last.ended == "told to stop", "not killed"


def test_repeated_hang_ups_count_as_one() -> None:
    """The shell sends SIGHUP when it ends, then the kernel does: this does not count as a second Ctrl-C."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup makes it ignored.
    with _ending() as ended:
        os.kill(os.getpid(), signal.SIGHUP)
        assert ended.is_set()
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGHUP, before)
