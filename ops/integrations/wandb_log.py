"""Reads what a Weights & Biases run has on disk: the transaction log of an offline run.

Consumes a `.wandb` file: a header of seven bytes, then records in LevelDB's log format, each a message of wandb's protocol.
Produces the last step of the history that is complete in the file. A file that is still being written is read up to its last
complete record, and further from there.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

HEADER = 7
BLOCK = 32 * 1024
CHUNK = struct.Struct("<IHB")
"""Checksum, length and type of a chunk."""
FULL = 1
FIRST = 2
MIDDLE = 3
LAST = 4
NO_STEP = -1


class TransactionLog:
    """A run's log, read as it grows.

    last: the newest step of the complete records; -1 if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = NO_STEP
        self._at = HEADER

    def read(self) -> int:
        """Reads the records that were added and makes them durable; returns the newest step."""
        from wandb.proto.wandb_internal_pb2 import Record

        try:
            with self.path.open("rb") as stream:
                start = self._at - self._at % BLOCK
                stream.seek(start)
                data = stream.read()
                os.fsync(stream.fileno())  # wandb leaves the file in the system's cache
        except FileNotFoundError:
            return self.last
        records, end = complete_records(data, self._at - start)
        self._at = start + end
        for record in records:
            history = Record.FromString(record).history
            if history.item:
                self.last = max(self.last, history.step.num)
        return self.last


def complete_records(data: bytes, at: int) -> tuple[list[bytes], int]:
    """Returns the complete records from an offset on, and the offset after the last of them.

    data: a file from the beginning of a block on; the file's header is part of its first block.
    """
    records = list[bytes]()
    parts = list[bytes]()
    end = at
    while at + CHUNK.size <= len(data):
        if (left := BLOCK - at % BLOCK) < CHUNK.size:
            at += left  # the rest of a block that is too short for a chunk is padding
            continue
        _, length, kind = CHUNK.unpack_from(data, at)
        at += CHUNK.size
        if not FULL <= kind <= LAST or at + length > len(data):
            break
        parts.append(data[at : at + length])
        at += length
        if kind in (FULL, LAST):
            records.append(b"".join(parts))
            parts = []
            end = at
    return records, end


def last_step_on_disk(folder: Path, run_id: str) -> int:
    """Returns the newest step in all logs of a run below wandb's folder; -1 if there is none.

    Removes what a killed process left without a single record, since `wandb sync` refuses every file because of one that is
    empty.
    """
    last = NO_STEP
    for path in folder.glob(f"offline-run-*-{run_id}*/run-{run_id}.wandb"):
        if path.stat().st_size <= HEADER:
            shutil.rmtree(path.parent)
        else:
            last = max(last, TransactionLog(path).read())
    return last
