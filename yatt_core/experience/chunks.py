"""Chunks of a growing log: an Arrow IPC stream with the sha256 of its bytes behind it.

Readers of Arrow streams stop at the end mark, so that a chunk opens in any of them; ours checks the digest first.
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
    """A chunk as it lies on disk. labels: what was written beside the rows. sha256: hexadecimal, of its Arrow bytes."""

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
    """The chunk of that name, or none where there is none; one that fails its check is said and counts as absent."""
    try:
        contents = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s: cannot be read (%s); it will be made again", path, error.strerror)
        return None
    data, expected = contents[:-DIGEST_BYTES], contents[-DIGEST_BYTES:]
    digest = hashlib.sha256(data)
    if digest.digest() != expected:
        _log.warning("%s: torn or changed (%d bytes fail their sha256); it will be made again", path, len(contents))
        return None
    table = pa.ipc.open_stream(data).read_all()
    labels = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    return Chunk(table.replace_schema_metadata(None), labels, digest.hexdigest())
