"""A checkpoint of three files, one in a subfolder, as a scenario for a child process that is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.keys import checkpoint_folder

FOLDER = str(checkpoint_folder(0, 10, 1))
IDENTITY = CheckpointIdentity("run", 0, 10, 1, "5" * 64, "3" * 64, audit_head="a" * 64)
NEEDED = 20_000


def write(folder: Path) -> None:
    """Writes the files as an engine's writer does."""
    save_file({"weight": np.arange(4000, dtype=np.float32)}, folder / "weights.safetensors")
    (folder / "schedule.json").write_text('{"step": 10}')
    (folder / "optimizer").mkdir()
    (folder / "optimizer" / "moments.bin").write_bytes(bytes(range(256)))


def publish(folder: Path, tell: Callable[[str], None]) -> None:
    """Publishes the checkpoint."""
    publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    tell("published")
