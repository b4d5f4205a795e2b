"""Durable files: the order of syncs and renames, which tests that only kill processes cannot check."""

from __future__ import annotations

import os
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from yatt_core import durable
from yatt_core.errors import InfrastructureError


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Records syncs, renames and creations of folders in order, with names relative to the test's folder."""
    seen: list[str] = []
    fsync = os.fsync
    rename = Path.rename
    mkdir = Path.mkdir

    def name(path: Path) -> str:
        if path == tmp_path:
            return "."
        known = path.relative_to(tmp_path).as_posix().replace(str(os.getpid()), "PID")
        return re.sub(r"\.[0-9a-f]{16}\.tmp$", ".RANDOM.tmp", known)

    def watched_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(tmp_path):
            seen.append(f"sync {name(path)}")
        fsync(descriptor)

    def watched_rename(source: Path, target: Path) -> Path:
        seen.append(f"rename {name(source)} {name(target)}")
        return rename(source, target)

    def watched_mkdir(path: Path, *arguments, **keywords) -> None:
        seen.append(f"mkdir {name(path)}")
        mkdir(path, *arguments, **keywords)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    monkeypatch.setattr(Path, "mkdir", watched_mkdir)
    return seen


def test_a_file_is_synced_before_its_rename_and_the_folder_after_it(tmp_path, steps):
    durable.write_file(tmp_path / "file", b"bytes")
    assert steps == ["sync .file.RANDOM.tmp", "rename .file.RANDOM.tmp file", "sync ."]
    assert (tmp_path / "file").read_bytes() == b"bytes"


def test_a_name_may_become_durable_with_that_of_the_next_file(tmp_path, steps):
    durable.write_file(tmp_path / "file", b"bytes", named=False)
    assert steps == ["sync .file.RANDOM.tmp", "rename .file.RANDOM.tmp file"]


def test_concurrent_writers_of_a_file_each_publish_a_complete_one(tmp_path, monkeypatch):
    """Uses threads; in practice, they are processes with the same id in containers that share a disk."""
    fsync = os.fsync
    all_written = threading.Barrier(3)

    def meet(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            all_written.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meet)
    contents = [bytes([letter]) * 1000 * letter for letter in b"abc"]
    with ThreadPoolExecutor(3) as writers:
        for writer in [writers.submit(durable.write_file, tmp_path / "file", data) for data in contents]:
            writer.result()
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_new_folder_is_synced_in_its_parent_before_the_next(tmp_path, steps):
    durable.make_folder(tmp_path / "a" / "b")
    assert steps == ["mkdir a", "sync .", "mkdir a/b", "sync a"]


def test_a_folder_that_a_killed_process_made_is_synced_again(tmp_path, steps):
    (tmp_path / "a").mkdir()
    steps.clear()
    durable.make_folder(tmp_path / "a" / "b")
    assert steps == ["sync .", "mkdir a/b", "sync a"]
    steps.clear()
    durable.make_folder(tmp_path / "a" / "b")
    assert steps == ["sync a"]


def test_only_the_first_claim_of_a_folder_succeeds(tmp_path):
    target = tmp_path / "a" / "b"
    assert [durable.claim_folder(target) for _ in range(2)] == [True, False]
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot be created"):
        durable.claim_folder(tmp_path / "file" / "c")


def test_a_folder_is_renamed_before_its_files_are_deleted(tmp_path, steps):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(b"x")
    steps.clear()
    durable.remove_folder(tmp_path / "old")
    assert steps == ["rename old .old.PID.trash", "sync ."]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    durable.write_file(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfrastructureError, match=r"file: 3 bytes cannot be written: No space left on device"):
        durable.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
