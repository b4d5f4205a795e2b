"""Reward functions that break out of their call, each in its own way, unless the response is `polite`."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from yatt_core.rewards.code_tests import CodeTests, code_tests
from yatt_core.rewards.options import Options, built_in

calls = 0


def counting(prompt, response):
    """Returns the number of calls in this process so far."""
    global calls
    calls += 1
    return calls


def forking(prompt, response):
    """Returns in two processes."""
    if response != "polite":
        os.fork()
    return 0.5


def stubborn(prompt, response):
    """Swallows every interrupt."""
    while response != "polite":
        with contextlib.suppress(BaseException):
            time.sleep(60)
    return 0.5


def late(prompt, response):
    """Swallows the interrupt, and then returns a value."""
    with contextlib.suppress(BaseException):
        time.sleep(60 if response != "polite" else 0)
    return 0.5


def dying(prompt, response):
    if response != "polite":
        os._exit(9)
    return 0.5


def dying_once(prompt, response, file):
    """Ends its process the first time, as if it had been killed from outside."""
    if response != "polite" and not Path(file).exists():
        Path(file).touch()
        os._exit(9)
    return 0.5


async def dying_once_among_others(prompt, response, file):
    return dying_once(prompt, response, file)


def dying_while_it_answers(prompt, response):
    """Ends its process when the beginning of an answer has been written."""
    if response != "polite":
        (server,) = (one for one in gc.get_objects() if type(one).__name__ == "Server")
        os.write(server._answers, b'{"call": 0, "outc')
        os._exit(9)
    return 0.5


def printing(prompt, response):
    for _ in range(100):
        sys.stdout.write("x" * 100_000 + "\n")
        sys.stderr.write("y" * 1_000)
    os.write(1, b'{"end": true}\n')
    return 0.5


def leaving_behind(prompt, response, file):
    """Starts a process in a session of its own, and one whose parent ends at once."""
    quiet = "stdout=subprocess.DEVNULL, start_new_session=True"
    script = f"import subprocess; print(subprocess.Popen(['sleep', '600'], {quiet}).pid)"
    orphan = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    child = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
    Path(file).write_text(f"{child} {orphan}")
    return 0.5


def changing_the_row(prompt, response, columns, words):
    """Returns a number that depends on what earlier calls have changed."""
    return len(columns.pop("topic")) + len(words.pop())


async def hanging_at_the_end(prompt, response):
    """Returns, but leaves a thread for which the event loop waits when it closes."""
    if response == "dying":
        os._exit(9)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    return 0.5


async def swallowing(prompt, response):
    """Swallows the cancellation, and then returns a value."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60 if response != "polite" else 0)
    return 0.5


async def busy(prompt, response):
    """Keeps the event loop busy for the time given in the response, and then waits until others have done so."""
    await asyncio.sleep(0)
    time.sleep(float(response))
    await asyncio.sleep(0.001)
    return 0.5


async def blocking_the_loop(prompt, response):
    if response != "polite":
        time.sleep(60)
    await asyncio.sleep(0.05)
    return 0.5


class NoOptions(Options):
    """Takes none."""


@built_in(NoOptions, blames_response=True)
def stubborn_reader(prompt, response, options):
    return stubborn(prompt, response)


@built_in(CodeTests, blames_response=True)
def code_tests_without_a_folder(prompt, response, options):
    """Scores code; for code that says `gone`, there is no folder in which a program could run."""
    with mock.patch.object(tempfile, "tempdir", "/nowhere" if "gone" in response else None):
        return code_tests(prompt, response, options)
