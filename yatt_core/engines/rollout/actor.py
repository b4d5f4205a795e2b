"""The Ray actor around a rollout engine: loads it, fences its callers, takes weights in place.

Consumes decode batches from controllers and packed weights from the trainer's first rank; produces responses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from yatt_core.cluster.presence import Presence
from yatt_core.data.inputs import INPUTS
from yatt_core.data.packed import PackedArrays
from yatt_core.engines.pieces import hold_back
from yatt_core.engines.protocol import GeneratePiece, GenerateRequest, RolloutEngine
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.errors import InfrastructureError
from yatt_core.logs import actor_logs
from yatt_core.receipts import ActorIdentity, SyncReceipt
from yatt_core.spec import RunSpec


class RolloutActor:
    """One engine of the pool. Calls are served one at a time, in the order they come."""

    def __init__(self, spec_json: str, run_folder: str, instance: int, epoch: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._instance = instance
        self._engine: RolloutEngine | None = None
        self._folder = Path(run_folder)
        self._identity = actor_logs(self._folder, f"rollout-{instance}", epoch)
        grace = self._spec.recovery.grace_seconds
        self._presence = Presence(self._folder, self._identity.name, epoch, grace)

    def load(self, epoch: int, model_path: str) -> ActorIdentity:
        """Builds the engine, once; its weights come with the first `update`."""
        with self._presence.serving("load", epoch):
            if self._engine is None:
                self._engine = build_rollout_engine(self._spec, model_path, self._folder / INPUTS)
        return ActorIdentity(
            self._identity.name,
            self._identity.pid,
            self._identity.node,
            self._spec.rollout.engine.kind,
            self._engine.capabilities,
        )

    def version(self, epoch: int) -> int:
        """Version of the weights it holds; -1 while they are undefined."""
        with self._presence.serving("version", epoch):
            return self._ready().version

    def update(self, epoch: int, packed: PackedArrays, version: int) -> SyncReceipt:
        """Takes the weights of a version."""
        with self._presence.serving("update", epoch):
            started = time.monotonic()
            self._ready().update_weights(packed.arrays(), version)
            return SyncReceipt(self._instance, version, time.monotonic() - started, packed.nbytes)

    def generate(self, epoch: int, request: GenerateRequest) -> Iterator[GeneratePiece]:
        """Answers a decode batch, piece by piece while it works on the rest."""
        with self._presence.serving("generate", epoch):
            yield from hold_back(self._ready().stream(request))

    def _ready(self) -> RolloutEngine:
        if self._engine is None:
            raise InfrastructureError(f"rollout-{self._instance} was asked to work before it was loaded")
        return self._engine
