"""The process of an engine, seen from the actor that owns it: starts it, calls it, notices its end.

Consumes what the engine is opened with. Produces the answers of the object that the process opens, such as vLLM's `VllmCore`.
The process runs in the engine's environment, gets its calls over a connection that only these two have (`protocol`), and
ends with its actor, however that ends. What it writes to stdout and stderr goes to the actor's log.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from yatt_core.engine_environments import EngineEnvironment, EngineKind, find_environment
from yatt_core.engines.rollout.served import start
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.served.protocol import (
    OPEN,
    VERSION,
    Answer,
    Call,
    Greeting,
    Opening,
    receive,
    send,
)
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.orphans import SIGNALS
from yatt_core.progress import advanced

log = logging.getLogger(__name__)
OPEN_SECONDS = 3600.0
"""Time limit for opening an engine, which includes reading its weights."""
ANSWER_SECONDS = 300.0
"""Time limit for every other call; the longest is a step that computes a whole batch of prompts."""
END_SECONDS = 1.0
"""Time limit for the process to end by itself, after its connection was closed or in an error."""
OF_THE_WORKFLOW = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Would have the engine's Python import the workflow's libraries."""
READ_BYTES = 1 << 16
LAST_LINES = 16
LONGEST_LINE = 400
"""How many of the last lines of the log are in an error's message, and their maximum length."""


def process_variables(found: EngineEnvironment, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of an engine's process: its own programs come first, the workflow's libraries not at all.

    variables: those that its kind of engine sets, and those of this process.
    """
    dropped = OF_THE_WORKFLOW if found.separate else ()
    kept = {name: value for name, value in variables.items() if name not in dropped}
    return kept | {"PATH": os.pathsep.join([str(found.python.parent), kept.get("PATH", os.defpath)])}


class EngineProcess:
    """An engine in a process of its own. One call at a time.

    launch: how the engine's process is started.
    environment: folder of its environment; None: see `find_environment`.
    opening: what it is opened with.
    address: this node's address for an engine over several nodes.
    seconds: time limit for a call, but for the first one.
    first: the first call, `OPEN` or `FOLLOW`.
    started: called once the process has started, before the first call.

    `versions`: of Python and the engine's packages, as its process told them.

    Raises what opening the engine raises, `ConfigurationError` for an environment that lacks the engine or has a wrong
    version of it, and `InfrastructureError` if the process ends or does not answer. After that, every call raises an
    `InfrastructureError`, unless `end` was called with another kind.
    """

    def __init__(
        self,
        launch: Launch,
        environment: str | None,
        opening: Opening,
        address: str = "",
        seconds: float = ANSWER_SECONDS,
        first: str = OPEN,
        started: Callable[[EngineProcess], None] = lambda _: None,
    ) -> None:
        found = find_environment(launch.kind, environment)
        variables = process_variables(found, launch.variables(found.processors, address, opening.invariant))
        self._title = launch.kind.title
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._seconds = seconds
        self._lost = ""
        self._why = ""
        self._kind: type[YattError] = InfrastructureError
        command = [str(found.python), "-X", "faulthandler", "-P", start.__file__, launch.module]
        own, other = socket.socketpair()
        with other:
            self._connection = Connection(own.detach())
            self._keeper = _Keeper(
                kind=launch.kind, command=command, connection=other.fileno(), variables=variables, lines=self._lines
            )
        try:
            started(self)
            self.versions = self._greet(found.folder)
            self._ask(first, (opening,), OPEN_SECONDS)
        except BaseException:
            self.close()
            raise

    def _greet(self, folder: Path) -> Mapping[str, str]:
        """Exchanges greetings; returns the process's versions."""
        mine = Greeting(VERSION, {"python": platform.python_version()})
        try:
            theirs = self._exchange(mine, "greeting", OPEN_SECONDS)
        except InfrastructureError as error:
            if not self._why and self._keeper.process.returncode > 0:
                raise ConfigurationError(f"{folder}: its Python cannot run an engine's process: {error}") from error
            raise
        if not isinstance(theirs, Greeting) or theirs.protocol != VERSION:
            spoken = theirs.protocol if isinstance(theirs, Greeting) else "none that is known"
            raise ConfigurationError(
                f"the {self._title} engine speaks protocol {spoken}, and its actor protocol {VERSION}: the two come from the "
                "same files, so YATT was replaced while it ran; stop the run, and resume it"
            )
        log.info("%s: %s", self._title, ", ".join(f"{name} {version}" for name, version in theirs.versions.items()))
        return theirs.versions

    @property
    def is_lost(self) -> bool:
        """True once the process has ended or failed to answer; such an engine cannot be used again."""
        return bool(self._lost or self._why)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._keeper.process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of the opened object returns. Raises what it raises."""
        return self._ask(method, arguments, self._seconds)

    def end(self, why: str, kind: type[YattError] = InfrastructureError) -> None:
        """Ends the process at once, from any thread: the call in progress, or else the next one, fails with this reason.

        kind: of the error that such calls raise.
        """
        if not self._why:
            self._why = why
            self._kind = kind
        self._keeper.process.kill()

    def wait(self) -> str:
        """Returns why the process has ended, once it has; no call may be in progress."""
        self._keeper.process.wait()
        return str(self._give_up("ended"))

    def close(self) -> None:
        """Ends the process."""
        self._lost = self._lost or f"the {self._title} engine was closed"
        self._connection.close()
        self._keeper.end(END_SECONDS)

    def _ask(self, method: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Returns what a call returns. Raises what it raises."""
        if self._lost:
            raise self._kind(self._lost)
        answer: Answer = self._exchange(Call(method, arguments), method, seconds)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _exchange(self, sent: Greeting | Call, what: str, seconds: float) -> Any:
        """Sends something and returns what the process sends back. Raises `InfrastructureError` if it does not.

        what: what is sent, for the message.
        """
        try:
            send(self._connection, sent)
            if not self._connection.poll(seconds):
                raise TimeoutError
            return receive(self._connection)
        except TimeoutError:
            raise self._give_up(f"has not answered {what!r} for {seconds:g} s") from None
        except (OSError, EOFError):
            raise self._give_up("ended") from None
        except BaseException:
            # The process may have got a part of the call, or the next call would take its answer for its own.
            self._give_up(f"was interrupted in {what!r}")
            raise

    def _give_up(self, what: str) -> YattError:
        """Ends the process and returns the error that says why."""
        self._connection.close()
        # A process that has ended by itself tells more by its exit code than by being killed.
        code = self._keeper.end(END_SECONDS)
        reason = f"was ended by {SIGNALS.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
        told = self._why or f"the {self._title} engine's process {reason if what == 'ended' else what}"
        lines = [line[:LONGEST_LINE] for line in self._lines]
        self._lost = "\n".join(
            [f"{told}; the last lines of its log:" if lines else f"{told}; it logged nothing", *lines]
        )
        return self._kind(self._lost)


class _Keeper:
    """Starts the process and reads its log until all of its processes have ended.

    Linux ends the process when the *thread* that started it ends, so this thread must last as long as the process.
    """

    def __init__(
        self, kind: EngineKind, command: list[str], connection: int, variables: Mapping[str, str], lines: deque[str]
    ) -> None:
        self._title = kind.title
        self._command = command
        self._connection = connection
        self._variables = variables
        self._lines = lines
        self._started = threading.Event()
        self._failure = ""
        self.process: subprocess.Popen[bytes]
        self._thread = threading.Thread(target=self._keep, name=kind.name, daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure:
            raise InfrastructureError(f"the {self._title} engine's process cannot be started: {self._failure}")

    def end(self, patience: float) -> int:
        """Ends the process unless it ends by itself, and returns its exit code, negative for a signal.

        patience: seconds until it is killed.
        """
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join(patience)
        return self.process.returncode

    def _keep(self) -> None:
        try:
            self.process = subprocess.Popen(
                [*self._command, str(self._connection), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[self._connection],
                env=self._variables,
                # A terminal's interrupt is meant for the driver.
                start_new_session=True,
            )
        except OSError as error:
            self._failure = str(error)
            return
        finally:
            self._started.set()
        assert self.process.stdout is not None
        with suppress(OSError), self.process.stdout as output:
            self._read(output)
        self.process.wait()

    def _read(self, output: IO[bytes]) -> None:
        """Logs the lines as they come. A part of a line, such as a bar that grows, is a sign of progress too."""
        rest = b""
        while chunk := os.read(output.fileno(), READ_BYTES):
            advanced()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._note(line)
            rest = rest[-READ_BYTES:]
        self._note(rest)

    def _note(self, line: bytes) -> None:
        # Of a line that was written several times, only the last version.
        if text := line.decode(errors="replace").rstrip().rpartition("\r")[2]:
            self._lines.append(text)
            log.info("%s: %s", self._title, text)
