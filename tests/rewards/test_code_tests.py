"""The reward for code: what passes, what the limits end, what code cannot reach, and which rows cannot be used."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.rewards import scored
from tests.rewards.scored import errors, part, scores, totals
from yatt_core.errors import AwayError, ConfigurationError, DataError, InfrastructureError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards import code_tests as module
from yatt_core.rewards import process, sandboxed_program
from yatt_core.rewards.code_tests import CodeTests, code_tests, fenced
from yatt_core.rewards.functions import load_part
from yatt_core.rewards.isolation import LIBC, NEW_USER
from yatt_core.rewards.sandboxed_program import MAIN, run_program

REFUSAL = module._refusal(True)
ISOLATION = "limits" if REFUSAL else "namespaces"
isolated = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)
SUM = "a, b = map(int, input().split())\nprint(a + b)"
PAIRS = [{"input": "3 4\n", "output": "7\n"}, {"input": "2 2", "output": "4"}]
SQUARES = ["assert square(3) == 9", "assert square(0) == 0", "assert square(-2) == 4"]


def row(tests, **columns):
    return Prompt(0, 4, "0/train/a.jsonl:5", "text", None, {"tests": tests, **columns})


def score(code, tests, **options):
    return code_tests(row(tests), f"So:\n```python\n{code}\n```\n", CodeTests(isolation=ISOLATION, **options))


def prints(code, **options):
    """Returns the score of a program that has to print `yes`."""
    return score(code, [{"input": "", "output": "yes"}], **options)


def refused(action, error):
    return f"try:\n    {action}\nexcept {error}:\n    print('yes')"


@pytest.mark.parametrize(
    ("code", "tests", "partial"),
    [
        (SUM, PAIRS, 1.0),
        (SUM, {"inputs": ["3 4", ["1 2", ""]], "outputs": ["7", ["3"]]}, 1.0),
        (SUM, json.dumps([{"type": "stdin_stdout", "fn_name": None, **pair} for pair in PAIRS]), 1.0),
        ("import sys\nprint(' ', sum(map(int, sys.stdin)), '\\n')", [{"input": "1\n2\n", "output": "3"}], 1.0),
        ("print(7)", PAIRS, 0.5),
        ("print(8)", PAIRS, 0.0),
        ("print(7)\n1 / 0", PAIRS, 0.0),
        ("def square(x): return x * x", SQUARES, 1.0),
        ("def square(x): return x * x", json.dumps(SQUARES), 1.0),
        ("def square(x): return x * x", "def check(f):\n    assert f(3) == 9\ncheck(square)", 1.0),
        ("def square(x): return abs(x) ** 2 if x > 0 else 0", SQUARES, 2 / 3),
        ("import os\nos._exit(0)", SQUARES, 0.0),
        ("raise SystemExit", SQUARES, 0.0),
        ("def square(x: return x", SQUARES, 0.0),
        ("if __name__ == '__main__': 1 / 0\ndef square(x): return x * x", SQUARES, 1.0),
    ],
)
def test_code_earns_the_tests_that_it_passes(code, tests, partial):
    assert score(code, tests, partial=True) == partial


def test_without_partial_only_all_tests_count():
    assert (score(SUM, PAIRS), score("print(4)", PAIRS), score("print(7)", PAIRS)) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("- item\n  ```python\n  if x:\n    y\n\n  z\n  ```", "if x:\n  y\n\nz"),
        ("```python\n    return 1\n```", "    return 1"),
        ("  ```python\na\n  b\n```", "a\n  b"),
        ("```python title=a.py\na\n```", "a"),
        ("``` py\na\n```", "a"),
        ('````python\na = """\n```\n"""\n````', 'a = """\n```\n"""'),
        ("````\na\n`````", "a"),
        ("```inline``` text\n```python\na\n```", "a"),
        ("```pythonic\na\n```", None),
    ],
)
def test_fences_are_those_of_markdown(text, code):
    assert fenced(text) == code


def test_code_is_the_last_block_that_is_labelled_as_python():
    blocks = "```\nplain\n```\n```python\none\n```\nor\n ```Python\ntwo\n  three\n```\n```bash\nls\n```\n```python\ncut"
    assert fenced(blocks) == "two\n  three"
    assert fenced("```\nplain\n```\n```bash\nls\n```") == "plain"
    assert fenced("no code") is None and fenced("```bash\nls\n```") is None
    assert fenced("```" * 300_000) is None
    assert fenced("```" * 300_000 + "\n" + "`" * 900_000) == ""
    options = CodeTests(isolation=ISOLATION)
    assert code_tests(row(PAIRS), "no code", options) == 0.0 == code_tests(row(PAIRS), "```python\n\n```", options)
    assert code_tests(row(PAIRS), SUM, CodeTests(isolation=ISOLATION, extract="whole")) == 1.0


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import os\nfor _ in range(8): os.fork()",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])",
        "kept = bytearray(1 << 29)",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "print('yes' * (1 << 20))",
        "with open('large', 'w') as file: file.write('x' * (1 << 20))",
        "kept = [open('main.py') for _ in range(100)]",
        "import ctypes\nctypes.string_at(0)",
    ],
)
def test_an_exhausted_limit_is_a_wrong_answer(code):
    limits = {"cpu_seconds": 1, "wall_seconds": 4.0, "memory_mib": 256, "output_kib": 512}
    if "sleep" in code:
        limits["wall_seconds"] = 1.1
    assert prints(f"{code}\nprint('yes')", **limits) == 0.0


@isolated
@pytest.mark.parametrize(
    "code",
    [
        refused("import socket; socket.create_connection(('127.0.0.1', 22), 1)", "PermissionError"),
        "names = [line.split(':')[0].strip() for line in open('/proc/self/net/dev')][2:]\n"
        "print('yes' if names == ['lo'] else names)",
        refused("import os; os.kill(-1, 0)", "ProcessLookupError"),
        refused("import os; os.kill(PID_OF_THE_TEST, 0)", "ProcessLookupError"),
        refused("open('/dev/shm/yatt-code', 'w')", "OSError"),
        refused("open('/dev/zero')", "PermissionError"),
        "import ctypes\nprint('yes' if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == -1 else 'no')",
        "import ctypes\nprint('yes' if ctypes.CDLL(None).unshare(0x10000000) == -1 else 'no')",
    ],
)
def test_code_reaches_no_network_no_process_and_no_file_that_it_could_change(code):
    assert prints(code.replace("PID_OF_THE_TEST", str(os.getpid()))) == 1.0


@pytest.mark.parametrize(
    "code",
    [
        refused("import os; os.fork()", "PermissionError"),
        refused("import os; os.posix_spawn('/bin/true', ['true'], {})", "PermissionError"),
        "import threading\nthread = threading.Thread(target=print, args=('yes',))\nthread.start()\nthread.join()",
    ],
)
@pytest.mark.parametrize("isolation", sorted({ISOLATION, "limits"}))
def test_code_starts_threads_but_no_processes(code, isolation):
    prompt = row([{"input": "", "output": "yes"}])
    response = f"```python\n{code}\n```"
    assert code_tests(prompt, response, CodeTests(isolation=isolation)) == 1.0


def test_code_is_alone_in_a_folder_that_is_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET", "1")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    code = (
        "import os\nopen('own', 'w').write('x')\n"
        "seen = [*sorted(os.listdir()), 'SECRET' in os.environ, len(os.listdir('/proc/self/fd'))]\n"
        "print('yes' if seen == ['main.py', 'own', False, 4] else seen)"
    )
    assert prints(code) == 1.0
    assert prints("import time\nopen('own', 'w').write('x')\ntime.sleep(60)", cpu_seconds=1, wall_seconds=1.1) == 0.0
    assert list(tmp_path.iterdir()) == []
    os.close(reading)
    os.close(writing)


def test_sets_have_the_same_order_in_each_interpreter():
    limits = CodeTests(isolation=ISOLATION).limits
    first, second = (run_program({MAIN: "print({*'abcdefghijklmnop'})"}, b"", limits) for _ in range(2))
    assert first.succeeded and first.output == second.output


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (None, "is NoneType; expected a list of"),
        ([], "is empty"),
        ("[1, 2", "is not JSON"),
        ([1], "has a test 0 that is int"),
        ([{"input": "1"}], "has a test 0 without the texts input and output"),
        (
            [{"input": "1 2", "output": "2", "fn_name": "f"}],
            "has a test 0 whose input is not a JSON value on each line",
        ),
        (
            [{"input": "1", "output": "2", "testtype": "functional"}],
            "has a test 0 that calls a function without naming it",
        ),
        ([{"input": "1", "output": "2", "testtype": "interactive"}], "has a test 0 of the type interactive"),
        ({"inputs": ["1"], "outputs": []}, "has 1 inputs and 0 outputs"),
        ({"inputs": [[1]], "outputs": [[1]], "fn_name": "f g"}, "has a test 0 that calls a function without naming it"),
        ("def check(candidate):\n    assert candidate(1)", "has a test 0 that defines check and does not call it"),
        (["def square(x): ...", "assert square(1)"], "has no statement in test 0 that tests something"),
        ("METADATA = {'author': 'lk'}\n", "has no statement in test 0 that tests something"),
        ({"cases": []}, "has the keys cases"),
        (["assert f(1"], "has a test 0 that is not Python"),
        ([SQUARES[0], PAIRS[0]], "mixes"),
    ],
)
def test_a_row_without_usable_tests_is_an_error_that_names_row_and_column(tests, message):
    with pytest.raises(DataError, match=rf"row 0/train/a\.jsonl:5: column 'tests' {message}"):
        score(SUM, tests)


def test_a_missing_column_is_an_error_that_names_the_others():
    with pytest.raises(DataError, match=r"row 0/train/a\.jsonl:5: column 'cases' is missing; the row has 'tests'"):
        code_tests(row(PAIRS), "", CodeTests(isolation=ISOLATION, tests="cases"))


def test_the_reward_runs_in_the_process_of_rewards(monkeypatch):
    monkeypatch.setattr(scored, "PROMPT", row(PAIRS))
    texts = [f"```python\n{code}\n```" for code in (SUM, "1 / 0", "print(7)")]
    rest = {"options": {"partial": True, "isolation": ISOLATION}, "on_failure": "stop"}
    assert totals("code_tests", *texts, timeout_seconds=60.0, **rest) == [1.0, 0.0, 0.5]
    late = errors("code_tests", "```python\nimport time\ntime.sleep(60)\n```", timeout_seconds=0.4, **rest)
    assert late == ["own: cannot read the response: took longer than 0.4 s"]


def test_a_program_that_cannot_be_started_says_nothing_about_the_code(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InfrastructureError, match=r"cannot run the program of a response: .*gone"):
        score("print(8)", PAIRS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sandboxed_program, "INTERPRETER", (str(tmp_path / "no python"), MAIN))
    with pytest.raises(InfrastructureError, match=r"cannot start the program of a response: .*No such file"):
        score("print(8)", PAIRS)
    assert list(tmp_path.iterdir()) == []


def test_a_sandbox_that_is_gone_is_away_and_scores_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    monkeypatch.setattr(scored, "PROMPT", row(PAIRS))
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    process.reward_process().close()  # the next one has its folder there
    text = f"```python\n{SUM}\n```"
    options = {"isolation": ISOLATION}
    assert totals("code_tests", text, options=options, timeout_seconds=60.0) == [1.0]
    folder.rmdir()
    with pytest.raises(AwayError, match="what reward part 'own' asks is away: cannot run the program of a response"):
        scores("code_tests", text, "no code", text, options=options, timeout_seconds=60.0)
    process.reward_process().close()


def test_a_response_whose_program_alone_cannot_be_started_has_no_score(monkeypatch):
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    monkeypatch.setattr(scored, "PROMPT", row(PAIRS))
    texts = [f"```python\n{code}\n```" for code in (SUM, f"{SUM}  # gone", "print(8)")]
    given = {"options": {"isolation": ISOLATION}, "timeout_seconds": 60.0, "on_failure": "mask"}
    found = scores("tests.rewards.rude_rewards:code_tests_without_a_folder", *texts, **given)
    assert [(one.total, one.missing) for one in found] == [(1.0, ()), (0.0, ("own/service",)), (0.0, ())]
    assert [one.error for one in found] == ["", found[1].error, ""] and "cannot run the program" in found[1].error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partal": True}, r"options\.partal: unknown option; did you mean 'partial'"),
        ({"extract": "boxed"}, r"options\.extract: Input should be 'fence' or 'whole'"),
        ({"cpu_seconds": 9, "wall_seconds": 9}, "wall_seconds 9 is not above cpu_seconds 9"),
        ({"isolation": "none"}, r"options\.isolation: Input should be 'namespaces' or 'limits'"),
    ],
)
def test_a_mistake_in_the_options_is_a_configuration_error(options, message):
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': function 'code_tests': .*{message}"):
        load_part(part("code_tests", options=options))


@isolated
def test_a_kernel_that_refuses_namespaces_is_an_error_that_names_the_option():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            LIBC.unshare(NEW_USER)
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
            module._refusal.cache_clear()
            assert CodeTests(isolation="limits").isolation == "limits"
            CodeTests()
        except ValueError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as said:
        text = said.read()
    assert "new namespaces (unshare): No space left" in text and "isolation: limits" in text
