"""Implements the flow's `Tracker` with TensorBoard's event files: a folder of events for each run and each branch.

Consumes outbox rows; produces one event file per tracking run, with a record for each iteration that holds all its
points, and texts for spec and note. Every delivery may be repeated: before it appends, it cuts off a record that a killed
process left unfinished, and leaves out what the file has already. A file is read only if another process wrote to it.
tensorboardX is imported at the first delivery.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.delivery.outbox import branch_of
from flows.run.home import Home
from flows.run.protocols import OutboxItem
from yatt_core import durable
from yatt_core.errors import InfrastructureError

log = logging.getLogger("yatt_core.outbox")
FOLDER = "tensorboard"
FILE = "events.out.tfevents.{seconds:010d}.yatt"
"""TensorBoard reads files whose names contain `tfevents`."""
VERSION = "brain.Event:2"
LENGTH = struct.Struct("<Q")
SUM = struct.Struct("<I")
TEXTS = {"params": "spec", "note": "note"}
"""Tags of the texts, by kind of row."""


@dataclass(slots=True)
class EventFile:
    """What an event file contains.

    size: bytes of its complete records.
    last: the newest iteration with points; -1 if there is none.
    texts: tags and times (milliseconds since 1970) of its texts.
    """

    size: int = 0
    last: int = -1
    texts: set[tuple[str, int]] = field(default_factory=set)


class TensorboardTracker:
    """Writes event files.

    folder: receives a folder for each tracking run; by default `tensorboard/` in the run's folder.
    """

    def __init__(self, home: Home, folder: str | None = None) -> None:
        self._home = home
        self._folder = Path(folder) if folder else None
        self._written: dict[Path, EventFile] = {}
        """What each file contained after this tracker last wrote to it."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        """Appends rows of one run in order; returns the path of the event file by the key of the row that creates it.

        The path is relative to the folder of all files. Raises `InfrastructureError` if the disk refuses a file.
        """
        made: dict[str, str] = {}
        with durable.refusals(f"TensorBoard's files in {self._below(items[0].run)}"):
            for item in items:
                if item.kind == "run":
                    made[item.key] = self._create(item)
            rest = [item for item in items if item.kind in ("metrics", *TEXTS)]
            if rest:
                self._append(rest)
        return made

    def cut(self) -> None:
        """Does nothing: each append is durable when it returns."""

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _below(self, run: str) -> Path:
        return self._folder or self._home.run_folder(run) / FOLDER

    def _create(self, item: OutboxItem) -> str:
        branch = branch_of(item.run, item.key)
        name = f"{item.run}-branch-{branch}" if branch else item.run
        file = Path(name) / FILE.format(seconds=item.at_ms // 1000)
        path = self._below(item.run) / file
        durable.make_folder(path.parent)
        if not path.exists():
            durable.write_file(path, b"")
        return str(file)

    def _append(self, items: list[OutboxItem]) -> None:
        """Appends the rows that the file lacks, in one write."""
        file = items[0].tracking_run
        if file is None:
            raise InfrastructureError(f"outbox row {items[0].key}: the event file of {items[0].run} does not exist yet")
        path = self._below(items[0].run) / file
        durable.make_folder(path.parent)
        with path.open("ab+") as stream:
            size = stream.seek(0, os.SEEK_END)
            written = self._written.pop(path, None)  # unknown again if the write below fails
            if written is None or written.size != size:
                written = _written(stream, path)
            if written.size < size:
                log.warning("%s ends within a record: it is continued after the last complete one", path)
                stream.truncate(written.size)
            data = b"".join(_records(items, written))
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        written.size += len(data)
        self._written[path] = written


def _records(items: list[OutboxItem], written: EventFile) -> Iterator[bytes]:
    """Yields the records that an event file lacks, and keeps account of them in `written`."""
    from tensorboardX.proto.event_pb2 import Event

    if not written.size:
        yield _framed(Event(wall_time=items[0].at_ms / 1000, file_version=VERSION).SerializeToString())
    for item in items:
        if item.kind == "metrics":
            step = item.body["iteration"]
            if step <= written.last:
                continue
            written.last = step
            summary = _points(item.body["metrics"])
        elif (text := (TEXTS[item.kind], item.at_ms)) in written.texts:
            continue
        else:
            step = written.last + 1
            written.texts.add(text)
            summary = _text(item)
        yield _framed(Event(wall_time=item.at_ms / 1000, step=max(0, step), summary=summary).SerializeToString())


def _points(metrics: Mapping[str, float]) -> Any:
    from tensorboardX.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()])


def _text(item: OutboxItem) -> Any:
    from tensorboardX.summary import text

    content = item.body["text"] if item.kind == "note" else f"```json\n{json.dumps(dict(item.body), indent=1)}\n```"
    return text(TEXTS[item.kind], content)


# -- records ----------------------------------------------------------------------------------------------------------


def _framed(data: bytes) -> bytes:
    """Returns a record: length, checksum of the length, data, checksum of the data."""
    from tensorboardX.record_writer import masked_crc32c

    length = LENGTH.pack(len(data))
    return length + SUM.pack(masked_crc32c(length)) + data + SUM.pack(masked_crc32c(data))


def _written(stream: Any, path: Path) -> EventFile:
    """Returns what the complete records at the beginning of an event file contain."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    written = EventFile()
    for end, data in _complete(stream):
        try:
            event = Event.FromString(data)
        except DecodeError as error:
            raise InfrastructureError(f"{path}: not an event file ({error}); move it away") from error
        written.size = end
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                written.last = max(written.last, event.step)
            else:
                written.texts.add((value.tag.partition("/")[0], round(event.wall_time * 1000)))
    return written


def _complete(stream: Any) -> Iterator[tuple[int, bytes]]:
    """Yields the end and the data of each complete record, up to the first one that is not."""
    from tensorboardX.record_writer import masked_crc32c

    stream.seek(0)
    while len(head := stream.read(LENGTH.size + SUM.size)) == LENGTH.size + SUM.size:
        length = head[: LENGTH.size]
        if SUM.unpack(head[LENGTH.size :])[0] != masked_crc32c(length):
            return
        data = stream.read(LENGTH.unpack(length)[0])
        tail = stream.read(SUM.size)
        if len(tail) < SUM.size or SUM.unpack(tail)[0] != masked_crc32c(data):
            return
        yield stream.tell(), data
