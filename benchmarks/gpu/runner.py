"""Checks claims in processes of their own, so that one that fails, hangs or ends its process leaves the others unharmed.

Consumes claims, a place and a time. Produces an outcome for each claim, as it comes. Claims of one module share a process; after
one that fails, those that are left get a new one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu.claims import PATIENCE, Claim, Place

HOLDS = "holds"
FAILS = "fails"
NEEDS_TWO = "needs two GPUs"
NOT_RUN = "not run"
LAST_LINES = 30
"""Lines of a process's own output that are kept of a failure."""
FOR_THE_END = 10.0
"""Seconds that an idle process has to end by itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a claim.

    state: `holds`, `fails`, `needs two GPUs` or `not run`.
    reason: what was found, or why nothing was.
    log: the last lines of a failed process's output.
    """

    state: str
    reason: str
    seconds: float = 0.0
    figures: Mapping[str, float | None] = field(default_factory=dict)
    log: Sequence[str] = ()


def outcomes(claims: Sequence[Claim], place: Place, ends: float) -> Generator[tuple[Claim, Outcome], None, None]:
    """Yields each claim with its outcome. ends: when to begin no more, by the monotonic clock."""
    for _, group in groupby(claims, key=lambda claim: claim.module):
        worker: Worker | None = None
        try:
            for claim in group:
                if claim.gpus > len(place.devices):
                    yield claim, Outcome(NEEDS_TWO, f"this machine has {len(place.devices)}")
                    continue
                left = ends - time.monotonic()
                if left <= 0:
                    yield claim, Outcome(NOT_RUN, "the time was up")
                    continue
                worker = worker or Worker(place)
                limit = claim.seconds * (PATIENCE if place.stand_in else 1)
                outcome = worker.outcome(claim.key, min(limit, left), limit > left)
                if outcome.state == FAILS and not worker.alive:
                    worker = None
                yield claim, outcome
        finally:
            if worker is not None:
                worker.end()


class Worker:
    """A process that checks claims at a place."""

    def __init__(self, place: Place) -> None:
        number = len(list(place.folder.glob("worker-*.log")))
        self._log = place.folder / f"worker-{number}.log"
        command = [sys.executable, "-m", f"{__package__}.worker", str(place.folder)]
        command += ["--stand-in"] if place.stand_in else []
        command += [f"--device={device}" for device in place.devices]
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if place.stand_in else {}
        with self._log.open("wb") as log:
            # A session of its own, so that it can be ended with the processes that it has started.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | hidden,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it takes another claim."""
        return self._process.poll() is None

    def outcome(self, key: str, limit: float, cut: bool) -> Outcome:
        """Checks a claim. limit: in seconds. cut: whether the limit is that of the whole benchmark."""
        begun = time.monotonic()
        channel = self._process.stdin
        answers = self._process.stdout
        assert channel is not None
        assert answers is not None
        with suppress(BrokenPipeError):  # it has ended while it was idle, so no answer comes either
            channel.write(f"{key}\n".encode())
            channel.flush()
        ready, _, _ = select.select([answers], [], [], limit)
        line = answers.readline() if ready else b""
        seconds = round(time.monotonic() - begun, 1)
        if line:
            found: dict[str, Any] = json.loads(line)
            state = HOLDS if found["holds"] else FAILS
            return Outcome(state=state, reason=found["said"], seconds=seconds, figures=found["figures"])
        if ready:
            code = self._process.wait()
            self.kill()
            return Outcome(state=FAILS, reason=self._reason(code), seconds=seconds, log=self._last_lines())
        self.kill()
        if cut:
            return Outcome(NOT_RUN, "the time was up while it ran", seconds=seconds)
        return Outcome(FAILS, f"no result after {limit:.0f} s", seconds=seconds, log=self._last_lines())

    def end(self) -> None:
        """Lets it end by itself, if it does so soon."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FOR_THE_END)
        self.kill()

    def kill(self) -> None:
        """Ends it, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of what it did not read
                pipe.close()

    def _last_lines(self) -> tuple[str, ...]:
        return tuple(_lines(self._log)[-LAST_LINES:])

    def _reason(self, code: int) -> str:
        """Returns the error of a process that has ended: the last line, with what follows it in the same message left out."""
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        lines = [line for line in _lines(self._log) if line.strip()]
        return lines[-1].strip() if lines else f"its process ended with exit code {code}"


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()
