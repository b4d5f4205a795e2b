"""The example that writes preferences works as its page says, in a clone that has no folder for the data yet."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from examples.preferences import main


def test_the_folder_of_the_rows_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data" / "preferences.jsonl"
    monkeypatch.setattr(sys, "argv", ["preferences", str(path), "--rows", "3"])
    main()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 3
    assert all(row["chosen"] != row["rejected"] for row in rows)
