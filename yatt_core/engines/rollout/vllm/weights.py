"""Updates and reads the weights of a vLLM engine, in each of its workers: the methods that YATT adds to vLLM's worker class.

Imports vLLM. Consumes buckets in memory that processes share, of a GPU or of the host, of which every worker loads its own part
by vLLM's own layerwise reload, so that no second copy of the model is made. Tensors have Hugging Face names.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing import parent_process
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import get_pp_group
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.models.registry import ModelRegistry

from yatt_core.engines.device_memory import wait_for
from yatt_core.engines.rollout.incoming import Assembly
from yatt_core.engines.rollout.served.shared_bucket import SharedBucket
from yatt_core.engines.rollout.vllm.held_weights import HeldPart, HeldTensors
from yatt_core.engines.rollout.vllm.nameless import forget_names
from yatt_core.engines.rollout.vllm.relay import BucketRelay
from yatt_core.engines.tensor_bits import as_tensor
from yatt_core.orphans import end_with_parent
from yatt_core.wire.parts import Sizes

VISION_ARCHITECTURE = "YattVisionLanguageModel"
# Every worker imports this module before it looks up its model's class, which is imported only if it is needed.
ModelRegistry.register_model(VISION_ARCHITECTURE, "yatt_core.engines.rollout.vllm.vision_model:VisionLanguageModel")

if parent_process() is not None:
    # A worker that waits for those of another node would not notice that its engine's process has ended.
    end_with_parent()


class WorkerMethods:
    """Methods of vLLM's workers, added by `worker_extension_cls` and called on all of them at once.

    The caller has checked what arrives.
    """

    vllm_config: Any
    model_config: Any
    parallel_config: Any
    rank: int
    device: torch.device
    model_runner: Any
    distributed_init_method: str
    _assembly: Assembly | None = None
    """The tensors of the update in progress that have not arrived whole."""
    _relay: BucketRelay | None = None
    _held: HeldTensors | None = None

    def settle_in(self) -> None:
        """Leaves no files behind, and makes the memory in which a later pipeline stage takes hidden states of the one before it.

        vLLM makes it when it measures a batch, which it leaves out on CPUs (vLLM 0.32).
        """
        forget_names(self.distributed_init_method)
        runner = self.model_runner
        if runner.intermediate_tensors is None and not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )

    def reads_gpu(self) -> bool:
        """Returns True if this worker can read buckets in the memory of its node's first GPU, or gets them from another node."""
        device = self.device
        if device.type != "cuda":
            return False
        elsewhere = self.rank >= self.parallel_config.local_world_size
        return elsewhere or device.index == 0 or torch.cuda.can_device_access_peer(device.index, 0)

    def begin_weights(self, renamed: Mapping[str, str]) -> None:
        """Begins an update; the model cannot be used until it ends.

        renamed: the model's own names of tensors that arrive under other ones.
        """
        self._renamed = renamed
        if self._relay is None:
            parallel = self.parallel_config
            self._relay = BucketRelay(self.rank, parallel.world_size, parallel.local_world_size, self.device)
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            if self._assembly is not None:
                # Ends an interrupted update; otherwise its incomplete layers would be mixed with the new ones.
                finalize_layerwise_reload(model, self.model_config)
            self._assembly = Assembly()
            initialize_layerwise_reload(model)

    def take_weights(self, bucket: SharedBucket) -> None:
        """Loads a bucket; a layer takes its new weights when all of them have arrived, or keeps the old ones if none has."""
        assert self._assembly is not None and self._relay is not None, "an update has begun"
        with set_current_vllm_config(self.vllm_config):
            for piece in self._relay.open(bucket).pieces():
                # vLLM keeps tensors until their layer is complete, so they need memory of their own, or memory that lasts.
                tensor = piece.values if bucket.lasts else self._assembly.put(piece)
                if tensor is not None:
                    name = self._renamed.get(piece.name, piece.name)
                    self.model_runner.get_model().load_weights([(name, as_tensor(tensor, piece.kind))])
        wait_for(self.device)  # the next bucket may take this one's place as soon as all workers have answered

    def end_weights(self) -> None:
        """Activates the new weights."""
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(model, self.model_config)
            refresh_tied_head(model)
        self._assembly = None

    def load_again(self) -> None:
        """Makes an update of the weights in the model's folder, which leaves them as any update does."""
        self.begin_weights({})
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            model.load_weights(get_model_loader(self.vllm_config.load_config).get_all_weights(self.model_config, model))
        self.end_weights()

    def held_part(self, name: str, shape: Sizes) -> HeldPart | None:
        """See `HeldTensors.part`. What another process holds comes from host memory."""
        if self._held is None:
            self._held = HeldTensors(self.model_runner.get_model())
        part = self._held.part(name, shape)
        return None if part is None else HeldPart(part.offsets, part.values.detach().cpu())

    def clear_cache(self) -> None:
        """Overwrites cached values of weights that were not finite.

        vLLM multiplies the content after a sequence's end in its last block by zero, which does not remove values
        that are not finite; without this method, such values would reach new responses in reused blocks.
        """
        for cache in self.model_runner.kv_caches:
            cache.zero_()


def refresh_tied_head(model: Any) -> None:
    """Repacks a tied output head for the CPU.

    On CPUs the head uses a packed copy of its weights. A tied head is loaded with the embeddings, so the
    reload never reaches it, and the copy of the old weights would stay in use (vLLM 0.32).
    """
    head: Any = getattr(model, "lm_head", None)
    if getattr(head, "cpu_linear", None) is not None and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
