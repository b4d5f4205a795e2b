"""Opens a vLLM engine in this process, and translates a request's sampling settings for it.

Imports vLLM, which reads the environment of its process (`environment`) when it is imported.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import distributed
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from yatt_core.engines.rollout.served.span import Span
from yatt_core.engines.rollout.vllm.failures import lacking_mode, opening_failure
from yatt_core.engines.rollout.vllm.settings import VllmSettings, least_batched_tokens
from yatt_core.engines.rollout.vllm.vision import is_vision_model
from yatt_core.engines.rollout.vllm.weights import VISION_ARCHITECTURE
from yatt_core.protocols.generation import GenerateRequest

log = logging.getLogger(__name__)

WORKER_METHODS = "yatt_core.engines.rollout.vllm.weights.WorkerMethods"
VISION_SETTINGS: Mapping[str, Any] = MappingProxyType(
    # Responses to a prompt share its pixels as they are, so that a second cache of them would only take memory.
    {"hf_overrides": {"architectures": [VISION_ARCHITECTURE]}, "mm_processor_cache_gb": 0}
)
BLOCK_TOKENS = 32
"""Tokens per cache block on a CPU: vLLM's kernels need a multiple of this number, and prompts share whole blocks."""


def open_engine(model_path: str, settings: VllmSettings, longest: int, span: Span | None = None) -> Any:
    """Opens an engine with the weights in a model folder.

    longest: maximum number of tokens of a sequence, including its prompt.
    span: the engine's nodes; None if it has one.

    Raises `ConfigurationError` for a model that vLLM cannot run here, `InfrastructureError` for too little free memory.
    """
    with opening_errors(model_path) as stage:
        config = engine_config(model_path, settings, longest, span)
        stage.starting = True
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)


@dataclass(slots=True)
class Stage:
    """How far an engine's opening has come.

    starting: whether vLLM has accepted the model and its settings.
    """

    starting: bool = False


@contextmanager
def opening_errors(model_path: str) -> Iterator[Stage]:
    """Raises YATT's errors for vLLM's while an engine is opened, as `open_engine` does."""
    stage = Stage()
    try:
        yield stage
    except (
        ValueError, OSError, NotImplementedError, MemoryError, ModuleNotFoundError, torch.OutOfMemoryError,
    ) as error:  # fmt: skip
        raise opening_failure(model_path, error, stage.starting) from error
    except RuntimeError as error:
        failure = lacking_mode(model_path, error)
        if failure is None:
            raise
        raise failure from error


def engine_config(model_path: str, settings: VllmSettings, longest: int, span: Span | None) -> Any:
    """Returns vLLM's settings, the same on every node of an engine but for the node's number.

    longest, span: see `open_engine`.
    """
    processors = bool(current_platform.is_cpu())
    vision = is_vision_model(model_path)
    arguments = EngineArgs(
        model=model_path,
        skip_tokenizer_init=True,
        generation_config="vllm",
        trust_remote_code=False,
        load_format="safetensors",
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_model_len=longest,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=_batched_tokens(settings, longest, processors),
        # On CPUs vLLM cannot sample with a seed after a prompt that is prefilled in chunks.
        enable_chunked_prefill=not processors,
        enable_prefix_caching=settings.enable_prefix_caching,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
        block_size=BLOCK_TOKENS if processors else None,
        enforce_eager=processors,
        enable_sleep_mode=not processors,
        logprobs_mode="processed_logprobs",
        max_logprobs=-1,  # a request for supports asks for as many as its top_k
        worker_extension_cls=WORKER_METHODS,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        distributed_executor_backend="mp" if settings.devices > 1 else None,
        disable_log_stats=True,
        seed=0,
        **(VISION_SETTINGS if vision else {}),
        **_node_settings(span),
    )
    if vision:
        from yatt_core.engines.rollout.vllm.vision_model import VisionLanguageModel

        # Given its class, vLLM need not inspect it in another process.
        ModelRegistry.register_model(VISION_ARCHITECTURE, VisionLanguageModel)
    elif processors:
        _import_architectures(Path(model_path))
    if processors and settings.devices == 1:
        _open_own_group()
    config = arguments.create_engine_config(headless=span is not None and span.rank > 0)
    if processors and settings.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = _cache_bytes(config, settings.max_num_seqs, longest)
    if processors and span is not None:
        # From their number vLLM tells which workers are on one node.
        config.parallel_config.assigned_physical_gpu_ids = list(range(settings.devices // span.nodes))
    return config


def _batched_tokens(settings: VllmSettings, longest: int, processors: bool) -> int:
    """Returns the number that vLLM works with; a smaller one than the least is only in the specs of runs of earlier versions."""
    least = least_batched_tokens(settings.max_num_seqs, longest, processors)
    if settings.max_num_batched_tokens < least:
        log.warning("max_num_batched_tokens: %d is too small and taken as %d", settings.max_num_batched_tokens, least)
    return max(settings.max_num_batched_tokens, least)


def _node_settings(span: Span | None) -> dict[str, Any]:
    """Returns vLLM's settings for a node of an engine; none if it has only one."""
    if span is None:
        return {}
    return {"nnodes": span.nodes, "node_rank": span.rank, "master_addr": span.host, "master_port": span.port}


def sampling_of(request: GenerateRequest, limit: int, seed: int) -> Any:
    """Returns vLLM's settings for one response: only the request's stop tokens stop it.

    Log-probabilities refer to the distribution that tokens are sampled from. With top_k, at most that many of them are
    finite, so that they are the support; of several tokens that are equally likely as the last one, some may be missing.
    """
    return SamplingParams(
        max_tokens=limit,
        temperature=0.0 if request.greedy else request.temperature,
        top_p=1.0 if request.greedy else request.top_p,
        top_k=0 if request.greedy else request.top_k,
        min_p=0.0 if request.greedy else request.min_p,
        repetition_penalty=1.0 if request.greedy else request.repetition_penalty,
        min_tokens=0 if request.greedy else min(request.min_new_tokens, limit),
        seed=None if request.greedy else seed,
        stop_token_ids=list(request.stop_tokens),
        ignore_eos=True,
        logprobs=request.top_k if request.record_support else 0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _open_own_group() -> None:
    """Opens a process-wide group that contains only this process.

    vLLM's own group would leave a file behind if the process is killed.
    """
    if not distributed.is_initialized():
        store = vars(distributed)["HashStore"]()  # torch's stubs do not name it
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def _import_architectures(folder: Path) -> None:
    """Imports the model's classes in this process, which needs them anyway.

    To avoid touching a GPU, vLLM inspects a class that is new to it in a separate process, which takes longer
    than the rest of the start.
    """
    for name in json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures", ()):
        if (known := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, known.load_model_cls())


def _cache_bytes(config: Any, sequences: int, longest: int) -> int:
    """Returns the size of a CPU cache for the maximum number of the longest sequences, so that none is preempted."""
    model = config.model_config
    parallel = config.parallel_config
    values = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel) * model.get_head_size()
    size = 1 if config.cache_config.cache_dtype.startswith("fp8") else model.dtype.itemsize
    # One extra block: vLLM reserves one for itself.
    blocks = sequences * -(-longest // BLOCK_TOKENS) + 1
    return int(blocks * BLOCK_TOKENS * values * size)
