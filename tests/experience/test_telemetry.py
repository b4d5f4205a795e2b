"""Telemetry beside the experience: nobody waits for the disk because of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yatt_core.experience.telemetry import read_telemetry, write_telemetry


def test_telemetry_of_an_iteration_that_has_a_folder_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_telemetry(tmp_path, 0, 1, "learn.t0001", {"seconds": 1.0})

    def refused(descriptor: int) -> None:
        raise AssertionError("nothing of it has to be durable")

    monkeypatch.setattr(os, "fsync", refused)
    write_telemetry(tmp_path, 0, 1, "profile", {"wall": 2.0})
    assert read_telemetry(tmp_path, 0, 1) == {"learn.t0001": {"seconds": 1.0}, "profile": {"wall": 2.0}}
