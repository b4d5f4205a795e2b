"""The state of a workload as a checkpoint has it, read again by any number of ranks, and by samplers.

Consumes the folder of a checkpoint: the subfolders `weights` and `others`, and `workload.json` with the version and the facts.
Produces a `SavedState`, of which only what is asked for is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from yatt_core.checkpoints.contents import OTHERS, WEIGHTS, WORKLOAD, open_tensors
from yatt_core.errors import DataError
from yatt_core.wire.part_files import PartFiles
from yatt_core.wire.parts import Box
from yatt_core.workloads.contract import SavedState


def read_state(folder: Path, version: int | None = None) -> SavedState:
    """Opens the state in a checkpoint. Raises `DataError` unless it is that of a workload, at a version if one is given."""
    path = folder / WORKLOAD
    try:
        told = json.loads(path.read_bytes())
        found = int(told["version"])
        facts = dict(told["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not the state of a workload: {error!r}") from error
    if version is not None and found != version:
        raise DataError(f"{folder}: holds version {found}, expected {version}")
    return SavedState(weights=SavedParts(folder, WEIGHTS), others=SavedParts(folder, OTHERS), facts=facts)


class SavedParts:
    """The tensors of a subfolder of a checkpoint; none if it has no such subfolder."""

    def __init__(self, folder: Path, subfolder: str) -> None:
        self._files = open_tensors(folder, subfolder) if (folder / subfolder).is_dir() else PartFiles()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the whole tensors, by name."""
        return self._files.shapes

    def whole(self, name: str) -> torch.Tensor:
        """Reads a tensor."""
        return torch.from_numpy(self._files.read(name))

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Reads rows of a tensor."""
        if name not in self.shapes:
            raise DataError(f"the checkpoint has no tensor {name}")
        below = self.shapes[name][1:]
        return torch.from_numpy(self._files.read(name, Box((start, *(0 for _ in below)), (stop - start, *below))))
