"""Takes low-rank adapters instead of whole weights and merges them with the model in a folder.

Consumes buckets of adapters; passes the folder's weights, merged with the adapters, to the engine, tensor by
tensor.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.engines.adapters import with_adapters
from yatt_core.engines.rollout.incoming import AssemblingTaker, ExpectedTensors
from yatt_core.engines.rollout.tensor_layout import read_layout
from yatt_core.engines.tensor_bits import as_tensor
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.wire.buckets import Piece, buckets_of


class MergingTaker(AssemblingTaker):
    """Takes adapters and passes merged weights to an engine.

    engine: takes the merged weights.
    share: factor by which the adapters' product is scaled.
    """

    def __init__(self, engine: RolloutEngine, folder: Path, share: float, bucket_bytes: int) -> None:
        self._engine = engine
        self._folder = folder
        self._share = share
        self._bucket_bytes = bucket_bytes

    def _begin(self, version: int) -> ExpectedTensors | None:
        self._engine.begin_update(version)
        self._kinds = dict[str, str]()
        return super()._begin(version)

    def _put(self, piece: Piece) -> None:
        self._kinds[piece.name] = piece.kind
        super()._put(piece)

    def _complete(self, version: int) -> None:
        # They are merged in float32, which also has every number of bfloat16, a type that numpy lacks.
        adapters = {
            name: as_tensor(adapter, self._kinds[name]).float().cpu().numpy() for name, adapter in self._whole.items()
        }
        self._whole = {}
        # Some folders contain a tied tensor under both names.
        shapes = read_layout(self._folder).shapes
        weights = with_adapters(self._folder, adapters, self._share)
        for bucket in buckets_of(((name, array) for name, array in weights if name in shapes), self._bucket_bytes):
            self._engine.take(bucket)
        self._engine.end_update()
