"""The program around the commands: fast help, exit codes, one message for every error, tracebacks on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.run.home import Home
from ops.cli.main import main
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run

COMMANDS = (
    "train", "deploy", "resume", "stop", "runs", "show", "logs", "rollouts", "placement", "evaluate", "promote", "aliases",
    "schema", "doctor",
)  # fmt: skip
HEAVY = (
    "torch",
    "pandas",
    "numpy",
    "pyarrow",
    "ray",
    "prefect",
    "mlflow",
    "sqlalchemy",
    "pydantic",
    "transformers",
    "yaml",
)


def script(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program as a separate process."""
    command = [sys.executable, "-c", "import sys; from ops.cli.main import main; sys.exit(main())", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, timeout=60, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    look = (
        f"import sys; from ops.cli.main import main; main(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
    assert all(command in answer.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_in_its_help(yatt: Yatt, command: str) -> None:
    answer = yatt(command, "--help")
    assert answer.code == 0
    assert f"yatt {command}" in answer.out.partition("Examples:")[2]


def test_without_a_command_it_prints_help(yatt: Yatt) -> None:
    answer = yatt()
    assert (answer.code, answer.err) == (0, "")
    assert "Commands" in answer.out


def test_version(yatt: Yatt) -> None:
    assert yatt("--version").out.startswith("yatt 0.")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shwo"], "Did you mean 'show'?"),
        (["show"], "RUN"),
        (["runs", "--bogus"], "--bogus"),
        (["runs", "--limit", "many"], "--limit"),
        (["runs", "-o", "yaml"], "yaml"),
        (["logs", "toy-1", "--level", "loud"], "debug, info, warning"),
    ],
)
def test_invalid_arguments_are_a_usage_error(yatt: Yatt, words: list[str], says: str) -> None:
    answer = yatt(*words)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_an_unexpected_error_is_one_message_and_a_traceback_only_with_debug(
    yatt: Yatt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by password=hunter2")

    monkeypatch.setattr("yatt_core.spec.json_schema", broken)
    answer = yatt("schema")
    assert answer.code == 1
    assert answer.err.startswith("error: unexpected ZeroDivisionError: by password=***")
    assert "--debug" in answer.err
    assert "Traceback" not in answer.err
    for words in (("--debug", "schema"), ("schema", "--debug")):
        answer = yatt(*words)
        assert answer.code == 1
        assert "Traceback" in answer.err
        assert "hunter2" not in answer.err


def test_home_is_accepted_before_and_after_the_command(yatt: Yatt, tmp_path: Path) -> None:
    elsewhere = Home(tmp_path / "elsewhere")
    seed_run(elsewhere)
    assert yatt("runs", "--home", str(elsewhere.folder), "-o", "json").document["runs"][0]["id"] == "toy-1"
    assert yatt("runs").code == 2
    assert yatt("--home", str(elsewhere.folder), "runs", "-o", "json").document["runs"][0]["id"] == "toy-1"


def test_the_process_exits_with_the_code_and_colours_nothing(home: Home, tmp_path: Path) -> None:
    seed_run(home)
    good = script("runs", "--home", str(home.folder))
    assert (good.returncode, good.stderr) == (0, "")
    assert "toy-1" in good.stdout
    assert "\x1b[" not in good.stdout
    bad = script("show", "nobody", "--home", str(home.folder), FORCE_COLOR="", NO_COLOR="1")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: there is no run 'nobody' in this ledger\n"


def test_an_interrupt_exits_with_130(home: Home) -> None:
    seed_run(home)
    command = [sys.executable, "-c", "import sys; from ops.cli.main import main; sys.exit(main())"]
    words = ["logs", "toy-1", "-f", "--home", str(home.folder)]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "driver started" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "interrupted\n"


def test_a_closed_reader_is_not_a_crash(home: Home) -> None:
    seed_run(home)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys; from ops.cli.main import main; sys.exit(main())", "schema"]
    with os.fdopen(writer, "w") as closed:
        answer = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (1, "")


def test_main_takes_its_arguments_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["yatt", "nonsense"])
    assert main() == 2
