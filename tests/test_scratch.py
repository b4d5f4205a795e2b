"""Where `make test` has its files: in memory only if there is enough of it, and apart from those of other checkouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import scratch
from tests.scratch import scratch_folder


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       25000000 kB\nMemFree:         1000 kB\nMemAvailable:   20000000 kB\n")
    return file


def test_each_checkout_has_a_folder_of_its_own_in_memory(
    tmp_path: Path, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "LEAST_IN_MEMORY", 0)
    one = scratch_folder(Path("/one"), tmp_path, facts)
    assert one.parent == tmp_path and one == scratch_folder(Path("/one"), tmp_path, facts)
    assert one != scratch_folder(Path("/other"), tmp_path, facts)


def test_without_enough_memory_files_are_below_the_repository(
    tmp_path: Path, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = Path("/one/.tmp")
    assert scratch_folder(Path("/one"), tmp_path / "none", facts) == below
    assert scratch_folder(Path("/one"), tmp_path, tmp_path / "none") == below
    monkeypatch.setattr(scratch, "LEAST_IN_MEMORY", 1 << 60)
    assert scratch_folder(Path("/one"), tmp_path, facts) == below
    monkeypatch.setattr(scratch, "LEAST_IN_MEMORY", 0)
    facts.write_text(facts.read_text().replace("20000000", "2000000"))
    assert scratch_folder(Path("/one"), tmp_path, facts) == below
