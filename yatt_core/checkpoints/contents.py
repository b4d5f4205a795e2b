"""The subfolders of a trainer's checkpoint, and how their tensors are read.

- `weights`: the state dict under Hugging Face names, tied tensors once
- `optimizer`: the moments, named after their kinds and parameters
- `adapters`: low-rank adapters, if only they are trained; `weights` then holds the merged weights
- `critic`, `critic_optimizer`: weights and moments of a critic
- `reference`: the policy that the KL term compares with, if the spec has one
- `others`: tensors of a workload of one's own beside its weights; `workload.json` has its version and its facts

Each has one file of parts per rank. Older checkpoints have one file of whole tensors in place of each subfolder.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import DataError
from yatt_core.wire.part_files import SUFFIX, PartFiles, files_of_parts

WEIGHTS = "weights"
OPTIMIZER = "optimizer"
ADAPTERS = "adapters"
CRITIC = "critic"
CRITIC_OPTIMIZER = "critic_optimizer"
REFERENCE = "reference"
OTHERS = "others"
WORKLOAD = "workload.json"
ADAPTER = "default"
"""peft's name of the adapter that is trained, which is part of its tensors' names."""


def open_tensors(checkpoint: Path, subfolder: str) -> PartFiles:
    """Opens the tensors in a subfolder, or in the file that stands for it. Raises `DataError` if there is neither."""
    folder = checkpoint / subfolder
    file = checkpoint / f"{subfolder}{SUFFIX}"
    if not folder.is_dir() and not file.is_file():
        raise DataError(f"{folder}: is missing")
    return PartFiles(files_of_parts(folder) if folder.is_dir() else [file])
