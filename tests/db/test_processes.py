"""Real processes on one ledger: killed during commits, and competing for the lease."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from tests.db.tools import assert_consistent, commit_of

REPOSITORY = Path(__file__).parents[2]


def start(*arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.db.worker", *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def test_a_driver_killed_during_commits_leaves_complete_iterations(address: str | Path) -> None:
    with Ledger.open(address) as ledger:
        ledger.runs.create("toy", {}, "d", 10_000)
        acknowledged = -1
        for lines in (1, 4, 9):
            child = start("forever", address)
            assert child.stdout is not None
            for _ in range(lines):
                acknowledged = int(child.stdout.readline())
            time.sleep(0.001 * lines)
            child.kill()
            remaining = child.stdout.read().split()
            child.wait()
            acknowledged = int(remaining[-1]) if remaining and remaining[-1] else acknowledged
            iterations = ledger.runs.find("toy-1").iteration + 1
            assert acknowledged + 1 <= iterations <= acknowledged + 2, "more than one unacknowledged iteration"
            assert_consistent(ledger, iterations)
        # the child's lease is valid for ten minutes, but the child is gone
        fence = ledger.leases.acquire("toy-1", this_process("heir"), ttl_seconds=10)
        assert fence.term == 4
        ledger.commits.commit(fence, commit_of(iterations))
        assert_consistent(ledger, iterations + 1)


@pytest.mark.postgresql
def test_two_drivers_compete_and_nothing_is_done_twice(address: str | Path) -> None:
    with Ledger.open(address) as ledger:
        ledger.runs.create("toy", {}, "d", 10_000)
        children = [start("contend", address, seed, stdin=subprocess.PIPE) for seed in (1, 2)]
        totals: Counter[str] = Counter()
        for child in children:  # otherwise, on a busy machine, one could finish before the other has started
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        while all(child.poll() is None for child in children):  # the first child that has seen enough ends the contest
            time.sleep(0.05)
        for child in children:
            output, _ = child.communicate(timeout=60)  # also closes the child's input
            assert child.returncode == 0
            committed, fenced = map(int, output.split())
            totals.update(committed=committed, fenced=fenced)
        assert totals["committed"] > 20
        assert totals["fenced"] > 0, "no takeover from a living holder"
        assert_consistent(ledger, totals["committed"])


@pytest.mark.parametrize("attempt", range(2))
def test_two_processes_can_open_a_new_ledger_concurrently(new_address: str | Path, attempt: int) -> None:
    children = [start("open", new_address) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
