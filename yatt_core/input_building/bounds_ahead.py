"""Bounds on prompts' lengths from a second process, computed while the prompts are still being written.

Consumes prompts in the order in which they are written. Produces the bound of each that the process has told by the end; the
others are computed where they are needed, so that a slow or lost process changes nothing but the time.

`python -m yatt_core.input_building.bounds_ahead` is that process: it reads a line with the spec, then one line for each batch
of prompts, and answers with one line for each.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from yatt_core.datasets.data_files import training_files
from yatt_core.input_building.lengths import bound_of
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import FileSource, FunctionSource
from yatt_core.spec.sections.model import GivenFolder

BATCH_PROMPTS = 256
WAITING = 128
"""Maximum number of batches that wait for the process; further ones are left to the caller."""
LEAST_BYTES = 32 << 20
"""Size of the files from which on a process is worth its start."""
LAST_SECONDS = 60.0
"""How long the caller waits for the batches that the process has been given."""


class BoundsAhead:
    """The second process. Only text alone is sent to it; of other prompts nothing is told.

    bounds: by the prompt's number; None for a prompt without a sure bound.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.bounds: dict[int, int | None] = {}
        self._queue = queue.Queue[tuple[int, str] | None](WAITING)
        self._closed = threading.Event()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._thread = threading.Thread(target=self._work, args=(spec.model_dump_json(),), daemon=True, name="bounds")
        self._thread.start()

    def passing(self, prompts: Iterable[Prompt]) -> Iterator[Prompt]:
        """Yields the prompts, and sends them on the way; afterwards, waits for what is still to be told."""
        batch: list[Any] = []
        number = 0
        for number, prompt in enumerate(prompts, start=1):
            plain = not (prompt.media or prompt.tools or prompt.rendered or prompt.messages or prompt.reply)
            batch.append(prompt.text if plain else None)
            if len(batch) == BATCH_PROMPTS:
                self._send(number - len(batch), batch)
                batch = []
            yield prompt
        self._send(number - len(batch), batch)
        self._queue.put(None)
        self._thread.join(LAST_SECONDS)

    def close(self) -> None:
        """Ends the process, and the thread that passes batches on."""
        self._closed.set()
        self._process.kill()
        with suppress(queue.Full):  # then the thread does not wait, and finds that this is closed
            self._queue.put_nowait(None)
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _send(self, first: int, batch: list[Any]) -> None:
        try:
            self._queue.put_nowait((first, json.dumps(batch)))
        except queue.Full:  # the process has not started yet, or is slower than the files are read
            return

    def _work(self, spec: str) -> None:
        """Passes batches on and takes the answers, one after another."""
        try:
            self._ask(spec)
            while (given := self._queue.get()) is not None:
                first, line = given
                for number, bound in enumerate(json.loads(self._ask(line)), start=first):
                    if bound != -1:
                        self.bounds[number] = bound
        except (OSError, ValueError):  # the process is gone: the rest is computed by the caller
            self._drain()

    def _drain(self) -> None:
        while not self._closed.is_set() and self._queue.get() is not None:
            continue

    def _ask(self, line: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise OSError("the process has no standard input or output")
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise OSError("the process has ended")
        return answer


def bounds_ahead(spec: RunSpec) -> BoundsAhead | None:
    """Starts the process if it is worth its start: for large files, on more than one core, and a tokenizer that exists."""
    if spec.virtual or not isinstance(spec.model, GivenFolder) or not spec.samples_responses or spec.data.has_images:
        return None
    if len(os.sched_getaffinity(0)) < 2 or _bytes(spec) < LEAST_BYTES:
        return None
    return BoundsAhead(spec)


def _bytes(spec: RunSpec) -> int:
    """Returns the size of the files with training prompts."""
    sources = [s for s in spec.data.sources if isinstance(s, FileSource) and not isinstance(s, FunctionSource)]
    return sum(file.path.stat().st_size for source in sources for file in training_files(source) if file.path.is_file())


def answer(requests: IO[str], answers: IO[str]) -> None:
    """Answers the lines of one caller until they end."""
    spec = RunSpec.model_validate_json(requests.readline())
    assert isinstance(spec.model, GivenFolder), "the caller starts no process for another model"
    bound = bound_of(spec, open_codec(spec, str(Path(spec.model.path).resolve()), roomless=True))
    answers.write("ready\n")
    answers.flush()
    for line in requests:
        texts: list[str | None] = json.loads(line)
        prompts = [
            None if text is None else Prompt(source=0, index=0, prompt_id="", text=text, answer=None, entry=_NOTHING)
            for text in texts
        ]
        found = [-1 if prompt is None or bound is None else bound.most(prompt) for prompt in prompts]
        answers.write(f"{json.dumps(found)}\n")
        answers.flush()


_NOTHING: Mapping[str, Any] = {}

if __name__ == "__main__":
    answer(sys.stdin, sys.stdout)
