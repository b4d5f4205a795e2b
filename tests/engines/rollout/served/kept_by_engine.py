"""A served engine that takes changes of weights, over a stand-in for its process: what its workers would have loaded is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.rollout.served.stand_in import STAND_IN
from yatt_core.engines.rollout.served import engine as module
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
from yatt_core.engines.rollout.served.shared_bucket import BucketReader, SharedBucket
from yatt_core.engines.tensor_bits import as_tensor
from yatt_core.errors import InfrastructureError
from yatt_core.spec.sections.accelerated import VllmRollout


class Core:
    """In place of an engine's process: its workers have what they have loaded from the copy."""

    def __init__(self, *_: object, **__: object) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.fails = False
        self.is_lost = False
        self.versions: dict[str, str] = {}
        self._reader = BucketReader(torch.device("cpu"))

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def capabilities(self) -> dict[str, bool]:
        return {}

    def begin_update(self, renamed: object) -> None:
        pass

    def take(self, shared: SharedBucket) -> None:
        if self.fails:
            raise InfrastructureError("the engine has ended")
        for piece in self._reader.open(shared).pieces():
            self.loaded[piece.name] = as_tensor(piece.values, piece.kind).clone()

    def end_update(self, version: int, recompute: bool, spoilt: bool) -> None:
        pass

    def close(self) -> None:
        pass


class Served(ServedRolloutEngine):
    """An engine that takes changes, over a stand-in for its process."""

    _core: Any

    def __init__(self, folder: Path) -> None:
        super().__init__(STAND_IN, str(folder), VllmRollout(), 8, 8, takes_changes=True)

    @property
    def shapes(self) -> Any:
        return self._layout.shapes

    @property
    def loaded(self) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = self._core.loaded
        return loaded


def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Returns an engine of a model's folder; engines that a test makes later have stand-ins for processes, too."""
    monkeypatch.setattr(module, "EngineProcess", Core)
    return Served(folder)
