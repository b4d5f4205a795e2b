"""A function that breaks out of its call fails on that call alone: nothing hangs, and no process is left."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.rewards.scored import PROMPT, completion, errors, part, scores, totals
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.rewards import process
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.functions import load_part

RUDE = "tests.rewards.rude_rewards:"
SLOW = "own: took longer than 0.1 s"


def family():
    """Returns the processes of rewards below this one with everything that they have started."""
    found = set()
    for child in psutil.Process().children():
        if child.status() != psutil.STATUS_ZOMBIE and "yatt_core.rewards.worker" in child.cmdline():
            found |= {child.pid, *(one.pid for one in child.children(recursive=True) if not gone(one.pid))}
    return found


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("forking", ""),
        ("stubborn", SLOW),
        ("late", SLOW),
        ("dying", "own: its process ended with exit code 9"),
    ],
)
def test_a_function_that_breaks_out_fails_on_that_call_alone(monkeypatch, function, error):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    found = scores(RUDE + function, "polite", "rude", "polite", "rude", "polite", timeout_seconds=0.1)
    value = 0.0 if error else 0.5
    assert [score.total for score in found] == [0.5, value, 0.5, value, 0.5]
    assert [score.error for score in found] == ["", error, "", error, ""]
    assert len(family()) == 2, "the process of rewards and its guard"


def test_a_coroutine_function_that_blocks_its_process_fails_on_that_call_alone(monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    found = errors(f"{RUDE}blocking_the_loop", "polite", "rude", "polite", timeout_seconds=0.3)
    assert found == ["", "own: took longer than 0.3 s", ""]


def test_printed_text_never_mixes_with_the_answers(capfd):
    process.reward_process().close()  # the next one inherits what is captured here
    assert totals(f"{RUDE}printing", "a", "b") == [0.5, 0.5]
    printed = len(capfd.readouterr().err)
    process.reward_process().close()
    assert printed > 19_000_000


def test_what_a_call_leaves_behind_is_ended(tmp_path):
    file = tmp_path / "pids"
    assert totals(f"{RUDE}leaving_behind", "a", options={"file": str(file)}) == [0.5]
    pids = list(map(int, file.read_text().split()))
    assert len(pids) == 2 and all(map(gone, pids))


def test_the_process_can_be_closed_and_starts_again_when_it_is_needed():
    function = load_part(part(f"{RUDE}dying"))
    assert len(family()) == 2
    process.reward_process().close()
    assert not family()
    ((outcome,),) = function.evaluate([[Candidate(PROMPT, completion("polite"))]])
    assert outcome.value == 0.5


def test_a_function_stays_loaded_between_calls_and_scorers():
    first = totals(f"{RUDE}counting", "a", "b")
    second = totals(f"{RUDE}counting", "c")
    assert [*first, *second] == [first[0], first[0] + 1, first[0] + 2]


@pytest.mark.parametrize(
    ("code", "message"),
    [("import os\nos._exit(3)\n", "ended with exit code 3"), ("while True: pass\n", r"took longer than 0\.5 s")],
)
def test_a_module_that_ends_the_process_or_hangs_is_a_configuration_error(tmp_path, monkeypatch, code, message):
    monkeypatch.setattr(process, "START_SECONDS", 0.5)
    process.reward_process().close()
    monkeypatch.setattr(process, "START_SECONDS", 20.0)
    load_part(part(f"{RUDE}dying"))
    monkeypatch.setattr(process, "START_SECONDS", 0.5)
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': file .*{message}"):
        load_part(part(None, file=f"{tmp_path}/reward.py:score"))


SCORING = """
import sys
from tests.rewards.scored import totals
print("scoring", flush=True)
totals("tests.rewards.rude_rewards:stubborn", "rude", timeout_seconds=60.0)
"""


def test_nothing_outlives_a_killed_scoring_process():
    child = subprocess.Popen([sys.executable, "-c", SCORING], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    processes, deadline = set(), time.monotonic() + 30
    while len(processes) < 2 and time.monotonic() < deadline:
        processes = {one.pid for one in psutil.Process(child.pid).children(recursive=True)}
        time.sleep(0.01)
    assert len(processes) == 2
    child.kill()
    child.wait()
    child.stdout.close()
    while not all(map(gone, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(gone, processes))
