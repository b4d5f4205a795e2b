"""New weights for a vLLM engine in this process, through vLLM's own interface for weight transfer.

Imports vLLM: only behind `prepare_environment`. The backend takes tensors in Hugging Face names from this process's memory, which
for an actor is Ray's object store, and loads them layer by layer, so that no second copy of the model is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "host_memory"
NamedTensors = Iterable[tuple[str, torch.Tensor]]


@dataclass
class HostInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on."""


@dataclass
class HostUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """tensors: name and tensor, read once."""

    tensors: NamedTensors = field(default_factory=tuple)


class HostMemoryTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Takes weights from the memory of its own process."""

    init_info_cls, update_info_cls = HostInit, HostUpdate
    _under_way = False

    def init_transfer_engine(self, init_info: HostInit) -> None:
        """Has nothing to connect to."""

    def start_weight_update(self) -> None:
        """From here on until the end the model cannot be used."""
        if self._under_way:
            # Of an update that broke off: what has come of a layer would be taken for a part of what comes now.
            finalize_layerwise_reload(self.model, self.model_config)
        self._under_way = True
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: HostUpdate) -> None:
        """Loads some tensors; a layer takes its new weights when it has all of them."""
        self.model.load_weights(update_info.tensors)

    def finish_weight_update(self) -> None:
        """Puts the new weights to work."""
        finalize_layerwise_reload(self.model, self.model_config)
        refresh_tied_head(self.model)
        self._under_way = False

    def shutdown(self) -> None:
        """Has nothing to let go of."""


def refresh_tied_head(model: Any) -> None:
    """Packs a tied output head anew for the processor.

    On CPUs the head works on a packed copy of its weights. A tied head is loaded as the embeddings, so that the reload never
    comes past it, and the copy of the old weights would stay in use (vLLM 0.32).
    """
    head: Any = getattr(model, "lm_head", None)
    if getattr(head, "cpu_linear", None) is not None and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def register_backend() -> None:
    """Makes the backend known to vLLM in this process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, HostMemoryTransfer)


def begin_transfer(engine: Any) -> None:
    """From here on until the end an engine, which is not at a step, cannot be used."""
    engine.collective_rpc("start_weight_update")


def transfer(engine: Any, tensors: NamedTensors) -> None:
    """Loads some tensors. A layer's are kept until all of them have come, so that they need memory of their own."""
    engine.collective_rpc("update_weights", kwargs={"update_info": {"tensors": tensors}})


def end_transfer(engine: Any) -> None:
    """Puts to work what has come."""
    engine.collective_rpc("finish_weight_update")


def clear_cache(engine: Any) -> None:
    """Overwrites what the cache holds of weights that were not finite.

    vLLM multiplies what lies behind a sequence's end in its last block by zero, which leaves a number that is not finite as it
    is; new responses in old blocks would get it.
    """
    engine.collective_rpc(_clear)


def _clear(worker: Any) -> None:
    for cache in worker.model_runner.kv_caches:
        cache.zero_()
