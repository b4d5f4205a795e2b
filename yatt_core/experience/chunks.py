"""Chunks of a growing log: an Arrow IPC stream followed by the sha256 of its bytes.

Arrow readers stop at the end mark of the stream, so any of them can open a chunk; the reader here checks the
digest first.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from yatt_core import durable

DIGEST_BYTES = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A chunk on disk.

    labels: metadata stored with the rows.
    sha256: hexadecimal digest of the Arrow bytes.
    """

    table: pa.Table
    labels: Mapping[str, str]
    sha256: str


def write_chunk(path: Path, table: pa.Table, labels: Mapping[str, str]) -> str:
    """Publishes a chunk durably and returns the sha256 of its Arrow bytes."""
    sink = pa.BufferOutputStream()
    labelled = table.replace_schema_metadata(dict(labels))
    with pa.ipc.new_stream(sink, labelled.schema) as writer:
        writer.write_table(labelled)
    data = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(data)
    durable.write_file(path, data + digest.digest())
    return digest.hexdigest()


def read_chunk(path: Path) -> Chunk | None:
    """Returns the chunk with this name; None if it does not exist or, with a logged warning, fails its check."""
    try:
        contents = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s: cannot be read (%s); it will be regenerated", path, error.strerror)
        return None
    data = contents[:-DIGEST_BYTES]
    expected = contents[-DIGEST_BYTES:]
    digest = hashlib.sha256(data)
    if digest.digest() != expected:
        _log.warning("%s: torn or changed (%d bytes fail their sha256); it will be regenerated", path, len(contents))
        return None
    table = pa.ipc.open_stream(data).read_all()
    labels = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    return Chunk(table.replace_schema_metadata(None), labels, digest.hexdigest())
