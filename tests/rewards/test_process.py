"""A function that breaks out of its call fails on that call alone: nothing hangs, and no process is left."""

import json
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from tests.rewards.scored import PROMPT, completion, errors, part, scores, totals
from tests.services import ROOT
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.rewards import process
from yatt_core.rewards.calls import RewardOutcome, outcome_of, plain_outcome
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.functions import load_part
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.rewards.scheme import RewardSpec

RUDE = "tests.rewards.rude_rewards:"
SLOW = "own: took longer than 1 s"


def family():
    """Returns the reward processes below this one with everything that they have started."""
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
        ("swallowing", SLOW),
        ("dying", "own: its process ended with exit code 9"),
    ],
)
def test_a_function_that_breaks_out_fails_on_that_call_alone(monkeypatch, function, error):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    found = scores(RUDE + function, "polite", "rude", "polite", "rude", "polite", timeout_seconds=1.0)
    value = 0.0 if error else 0.5
    assert [score.total for score in found] == [0.5, value, 0.5, value, 0.5]
    assert [score.error for score in found] == ["", error, "", error, ""]
    assert len(family()) == 2, "the reward process and its guard"


def test_a_coroutine_function_that_blocks_its_process_fails_on_that_call_alone(monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    found = errors(f"{RUDE}blocking_the_loop", "polite", "rude", "polite", timeout_seconds=1.0)
    assert found == ["", SLOW, ""]


@pytest.mark.parametrize("function", ["dying_once", "dying_once_among_others"])
def test_a_process_that_is_killed_once_changes_no_score(tmp_path, function):
    given = {"options": {"file": str(tmp_path / "died")}, "on_failure": "stop"}
    assert totals(RUDE + function, "polite", "rude", "polite", **given) == [0.5] * 3
    assert (tmp_path / "died").exists()


def test_a_process_that_ends_in_the_middle_of_an_answer_is_noticed():
    assert errors(f"{RUDE}dying_while_it_answers", "polite", "rude") == ["", "own: its process ended with exit code 9"]


def test_a_process_that_is_lost_after_its_last_answer_changes_no_score(monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    given = {"on_failure": "stop", "timeout_seconds": 1.0}
    assert totals(f"{RUDE}hanging_at_the_end", "a", "b", **given) == [0.5, 0.5]
    found = errors(f"{RUDE}hanging_at_the_end", "a", "dying", timeout_seconds=1.0)
    assert found == ["", "own: its process ended with exit code 9"]


def test_the_time_limit_of_a_coroutine_call_does_not_count_the_time_for_which_others_block():
    assert errors(f"{RUDE}busy", "1.1", "1.1", "0", timeout_seconds=2.0) == ["", "", ""]
    assert errors(f"{RUDE}busy", "1.2", "0", timeout_seconds=1.0) == [SLOW, ""]


def test_a_call_that_changes_its_arguments_affects_no_other():
    assert totals(f"{RUDE}changing_the_row", "a", "b", options={"words": ["ab", "a"]}) == [5, 5]


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
    ("code", "seconds", "message"),
    [
        ("import os\nos._exit(3)\n", 60.0, "ended with exit code 3"),
        ("while True: pass\n", 0.5, r"took longer than 0\.5 s"),
    ],
)
def test_a_module_that_ends_the_process_or_hangs_is_a_configuration_error(
    tmp_path, monkeypatch, code, seconds, message
):
    load_part(part(f"{RUDE}dying"))
    monkeypatch.setattr(process, "START_SECONDS", seconds)
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': file .*{message}"):
        load_part(part(None, file=f"{tmp_path}/reward.py:score"))


def test_a_module_that_was_imported_before_and_now_ends_the_process_is_no_configuration_error(tmp_path):
    (tmp_path / "reward.py").write_text(
        f"import os\nif os.path.exists('{tmp_path}/away'):\n    os._exit(3)\ndef score(prompt, response):\n    return 0.5\n"
    )
    function = load_part(part(None, file=f"{tmp_path}/reward.py:score"))
    process.reward_process().close()
    (tmp_path / "away").touch()
    with pytest.raises(InfrastructureError, match=r"rewards\.parts 'own': file .*ended with exit code 3"):
        function.evaluate([[Candidate(PROMPT, completion("text"))]])
    (tmp_path / "away").unlink()
    assert function.evaluate([[Candidate(PROMPT, completion("text"))]])[0][0].value == 0.5


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
    processes = set()
    deadline = time.monotonic() + 30
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


MADE_ONCE = {
    "semaphore": """
        import asyncio
        free = asyncio.Semaphore(2)
        async def score(prompt, response):
            async with free:
                await asyncio.sleep(0.001)
            return 0.5
    """,
    "lock": """
        import asyncio
        one = asyncio.Lock()
        async def score(prompt, responses):
            async with one:
                await asyncio.sleep(0.001)
            return [0.5] * len(responses)
    """,
    "loop": """
        import asyncio
        loop = asyncio.get_event_loop()
        async def score(prompt, response):
            return await loop.run_in_executor(None, lambda: 0.5)
    """,
    "client": """
        import httpx
        client = httpx.AsyncClient()
        async def score(prompt, response):
            return float((await client.get("http://127.0.0.1:PORT/")).text)
    """,
}


@pytest.fixture
def half_server():
    """Serves the text 0.5 on loopback, keeps connections open, and yields its port."""

    class Half(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"0.5")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Half) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("thing", MADE_ONCE)
def test_what_a_module_makes_once_works_in_every_batch(tmp_path, half_server, thing):
    file = tmp_path / "own.py"
    file.write_text(textwrap.dedent(MADE_ONCE[thing]).replace("PORT", str(half_server)))
    scorer = RewardScorer(RewardSpec.model_validate({"parts": [{"name": "own", "file": f"{file}:score"}]}))
    responses = [Scored(PROMPT, completion(str(number)), 0, number) for number in range(8)]
    for _ in range(3):
        assert [one.total for one in scorer.score(responses)] == [0.5] * 8


def test_a_decode_batch_is_packed_and_answered_together(monkeypatch):
    """What its responses are read by is sent once, and the scoring process does not wake up for each answer."""
    sent = []
    reads = []
    packed = process._packed
    read = process.RewardProcess._read
    monkeypatch.setattr(process, "_packed", lambda *given: sent.append(packed(*given)) or sent[-1])
    monkeypatch.setattr(process.RewardProcess, "_read", lambda *given: reads.append(read(*given)))
    monkeypatch.setattr(process, "GATHER_SECONDS", 0.2)
    scorer = RewardScorer(RewardSpec(parts=(part("tests.rewards.own_rewards:results"),)))
    responses = [Scored(PROMPT, completion("abc"), sample=number) for number in range(100)]
    found = scorer.outcomes("response", responses)
    assert [outcomes["own"].value for outcomes in found] == [found[0]["own"].value] * 100
    (request,) = sent
    assert len(request["readings"]) == len(request["prompts"]) == 1 and len(request["calls"]) == 100
    assert len(reads) < 10


@pytest.mark.parametrize(
    "outcome",
    [
        RewardOutcome(0.5),
        RewardOutcome(2.0, wrong_steps=(1, 3)),
        RewardOutcome(0.0, "took long", failed=True, place="a.py:3", cause="time_limit", absent=True, asked=False),
    ],
)
def test_outcomes_are_the_same_after_their_way_through_a_pipe(outcome):
    assert outcome_of(json.loads(json.dumps(plain_outcome(outcome)))) == outcome
