"""Reads the rows of a source that is written as in a spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from yatt_core.datasets.rows import Row, Split, read_rows
from yatt_core.spec.sections.data import FileSource, Source

SOURCE: TypeAdapter[FileSource] = TypeAdapter(Source)


def read(source: dict[str, Any], split: Split = "train") -> list[Row]:
    return list(read_rows(SOURCE.validate_python(source), split, lambda data, place: f"{len(data)} bytes"))


def read_json(path: Path, text: str | bytes, **source: Any) -> list[Row]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read({"kind": "jsonl", "path": str(path), **source})


def read_values(path: Path, *rows: Any, **source: Any) -> list[Row]:
    return read_json(path, "".join(json.dumps(row) + "\n" for row in rows), **source)
