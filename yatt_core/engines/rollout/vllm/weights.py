"""Updates the weights of a vLLM engine in this process, through vLLM's own interface for weight transfer.

Imports vLLM, so import it only after `prepare_environment`. The backend takes tensors under Hugging Face names
from this process's memory (in an actor, Ray's object store) and loads them layer by layer, so that no second
copy of the model is made.
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
    """Connection settings; there are none."""


@dataclass
class HostUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One call's tensors.

    tensors: pairs of name and tensor, iterated over only once.
    """

    tensors: NamedTensors = field(default_factory=tuple)


class HostMemoryTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Takes weights from the memory of its own process."""

    init_info_cls, update_info_cls = HostInit, HostUpdate
    _under_way = False

    def init_transfer_engine(self, init_info: HostInit) -> None:
        """Does nothing: there is no connection to open."""

    def start_weight_update(self) -> None:
        """Begins an update; the model cannot be used until it ends."""
        if self._under_way:
            # Ends an interrupted update; otherwise its incomplete layers would be mixed with the new ones.
            finalize_layerwise_reload(self.model, self.model_config)
        self._under_way = True
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: HostUpdate) -> None:
        """Loads some tensors; a layer takes its new weights when all of them have arrived."""
        self.model.load_weights(update_info.tensors)

    def finish_weight_update(self) -> None:
        """Activates the new weights."""
        finalize_layerwise_reload(self.model, self.model_config)
        refresh_tied_head(self.model)
        self._under_way = False

    def shutdown(self) -> None:
        """Does nothing: there is nothing to release."""


def refresh_tied_head(model: Any) -> None:
    """Repacks a tied output head for the CPU.

    On CPUs the head uses a packed copy of its weights. A tied head is loaded with the embeddings, so the
    reload never reaches it, and the copy of the old weights would stay in use (vLLM 0.32).
    """
    head: Any = getattr(model, "lm_head", None)
    if getattr(head, "cpu_linear", None) is not None and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def register_backend() -> None:
    """Registers the backend with vLLM in this process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, HostMemoryTransfer)


def begin_transfer(engine: Any) -> None:
    """Begins an update of an engine that is not in a step; the engine cannot be used until the update ends."""
    engine.collective_rpc("start_weight_update")


def transfer(engine: Any, tensors: NamedTensors) -> None:
    """Loads some tensors. vLLM keeps them until their layer is complete, so they need memory of their own."""
    engine.collective_rpc("update_weights", kwargs={"update_info": {"tensors": tensors}})


def end_transfer(engine: Any) -> None:
    """Activates the weights that have arrived."""
    engine.collective_rpc("finish_weight_update")


def clear_cache(engine: Any) -> None:
    """Overwrites cached values of weights that were not finite.

    vLLM multiplies the content after a sequence's end in its last block by zero, which does not remove values
    that are not finite; without this function, such values would reach new responses in reused blocks.
    """
    engine.collective_rpc(_clear)


def _clear(worker: Any) -> None:
    for cache in worker.model_runner.kv_caches:
        cache.zero_()
