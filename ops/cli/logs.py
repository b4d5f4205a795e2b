"""`yatt logs`: what the driver and the actors of a run wrote, merged by time, filtered, followed.

Consumes the JSON-lines files of the run folder, one for each actor and epoch, each in order of time.
"""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli.options import HomeOption, Output, OutputOption, RunArgument, examples, find_run, opened_ledger
from ops.cli.output import message, write, write_json

LEVELS = ("debug", "info", "warning", "error", "critical")
POLL_SECONDS = 0.3

Record = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    lines = (
        "yatt logs latest",
        "yatt logs quickstart-1 --level warning --lines 0",
        "yatt logs latest --iteration 12 --phase collect --actor controller-0",
        "yatt logs latest -f",
    )
    app.command(epilog=examples(*lines))(logs)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; none: all. actor: an actor's name or its beginning. level: the lowest one."""

    iteration: int | None = None
    phase: str | None = None
    actor: str | None = None
    level: str = "debug"

    def __call__(self, record: Record) -> bool:
        """True for a wanted record."""
        return (
            (self.iteration is None or record.get("iteration") == self.iteration)
            and (self.phase is None or record.get("phase") == self.phase)
            and (self.actor is None or _begins(str(record.get("actor", "")), self.actor))
            and LEVELS.index(record["level"]) >= LEVELS.index(self.level)
        )


def _begins(actor: str, wanted: str) -> bool:
    """A number is not cut: controller-1 is no beginning of controller-10."""
    cut = wanted[-1:].isdigit() and actor[len(wanted) :][:1].isdigit()
    return actor.startswith(wanted) and not cut


def logs(
    run: RunArgument,
    iteration: Annotated[int | None, typer.Option(help="Only what was logged in this iteration.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only what was logged in this phase, such as `collect`.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only this actor, or those whose names begin so.")] = None,
    level: Annotated[str, typer.Option(help=f"The lowest level: {', '.join(LEVELS)}.")] = "info",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(min=0, help="How many of the newest records; 0: all.")] = 200,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a run's logs, oldest first; with -o json one object a line."""
    from flows.home import Home

    if level not in LEVELS:
        raise typer.BadParameter(f"--level {level}: right would be one of {', '.join(LEVELS)}")
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        folder = place.run_folder(find_run(ledger, run)) / "logs"
    wanted = Filter(iteration, phase, actor, level)
    tail = LogTail(folder)
    newest: Iterable[Record] = filter(wanted, tail.new_records())
    shown = 0
    for record in deque(newest, maxlen=lines or None):
        _show(record, output)
        shown += 1
    if not shown and not follow:
        message(f"no such records in {folder}")
    while follow:
        sys.stdout.flush()  # whoever reads through a pipe follows too
        time.sleep(POLL_SECONDS)
        for record in filter(wanted, tail.new_records()):
            _show(record, output)


class LogTail:
    """Reads a folder's log files again and again, each record once; a line still being written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_records(self) -> Iterator[Record]:
        """What was written since the last call, in order of time."""
        streams = [self._new_in(path) for path in sorted(self._folder.glob("*.jsonl"))]
        return heapq.merge(*streams, key=lambda record: float(record["time"]))

    def _new_in(self, path: Path) -> Iterator[Record]:
        try:
            stream = path.open("rb")
        except FileNotFoundError:  # an old part, deleted since the folder was listed
            return
        with stream:
            stream.seek(self._offsets.get(path, 0))
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                if (record := parsed(line)) is not None:
                    yield record


def parsed(line: bytes) -> Record | None:
    """The record in a line; none for one that a kill tore before the next process went on behind it."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("time"), int | float) and record.get("level") in LEVELS
    return record if whole else None


def _show(record: Record, output: Output) -> None:
    if output is Output.JSON:
        write_json(record)
        return
    moment = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    place = " ".join(str(record[key]) for key in ("iteration", "phase") if key in record)
    write(f"{moment} {record['level']:<8}{record.get('actor', ''):<16}{place:<16}{record.get('message', '')}")
