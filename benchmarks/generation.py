"""Measures tokens per second on mixed lengths and in bfloat16: torch engine against `generate`, one thread.

Consumes nothing. Mixed: 128 requests of forced, log-normal lengths (8 to 256 tokens), which the engine takes at once
and `generate` takes in static batches of several sizes in the order of arrival; only requested tokens count. Also
measures transformers' continuous batching. bfloat16: 64 responses of one length. Part of `benchmarks.engines`, whose
other engines do the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.common import progress
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
VOCABULARY = 4096
PROMPT = 32
REQUESTS = 128
SHORTEST = 8
LONGEST = 256
MEDIAN = 48
SIGMA = 0.8
STATIC_BATCHES = (8, 16, 32, 64, 128)
EQUAL_PROMPTS = 8
EQUAL_SAMPLES = 8
EQUAL_TOKENS = 64
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a measurement. prompts: [N, tokens]. lengths: [N], forced tokens of each prompt's responses."""

    prompts: npt.NDArray[np.int32]
    samples: int
    lengths: npt.NDArray[np.int32]

    @property
    def tokens(self) -> int:
        """The total of requested tokens."""
        return int(self.lengths.sum()) * self.samples

    @property
    def request(self) -> GenerateRequest:
        """Returns the work as a decode batch for weights of version 0."""
        seeds = np.random.default_rng(SEED + 1).integers(0, 2**63, (len(self.prompts), self.samples))
        return GenerateRequest(
            prompts=list(self.prompts),
            seeds=seeds.astype(np.uint64),
            max_new_tokens=int(self.lengths.max()),
            stop_tokens=(),
            weight_version=0,
            limits=self.lengths,
        )


def mixed_work() -> Work:
    """Draws log-normal lengths, one response per prompt."""
    noise = np.random.default_rng(SEED)
    prompts = noise.integers(2, VOCABULARY, (REQUESTS, PROMPT)).astype(np.int32)
    lengths = np.exp(noise.normal(np.log(MEDIAN), SIGMA, REQUESTS)).round().clip(SHORTEST, LONGEST)
    return Work(prompts, 1, lengths.astype(np.int32))


def equal_work() -> Work:
    """Returns groups of responses of one length."""
    prompts = np.random.default_rng(SEED).integers(2, VOCABULARY, (EQUAL_PROMPTS, PROMPT)).astype(np.int32)
    return Work(prompts, EQUAL_SAMPLES, np.full(EQUAL_PROMPTS, EQUAL_TOKENS, np.int32))


def write_model(folder: Path) -> None:
    """Writes a model of 4 million parameters."""
    spec = ModelFromConfig(
        hidden_size=256, layers=4, heads=4, key_value_heads=2, intermediate_size=704, max_positions=512
    )
    make_model(spec, VOCABULARY, SEED, folder)


def measure_torch(folder: Path) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures and their baselines. folder: a folder written by `write_model`."""
    torch.set_num_threads(1)
    mixed = mixed_work()
    equal = equal_work()
    exact, narrow = (_engine(folder, dtype) for dtype in ("float32", "bfloat16"))
    modules: Any = {dtype: load_causal_lm(str(folder), dtype) for dtype in ("float32", "bfloat16")}
    runs: dict[str, Callable[[], Any]] = {"torch_mixed": lambda: exact.generate(mixed.request)}
    for size in STATIC_BATCHES:
        runs[f"static_{size}"] = _static(modules["float32"], mixed, size)
    runs["continuous"] = _continuous(modules["float32"], mixed)
    runs["torch_bf16"] = lambda: narrow.generate(equal.request)
    runs["hf_bf16"] = _static(modules["bfloat16"], equal, len(equal.prompts))
    seconds = _best(runs)
    rates = {name: (equal if name.endswith("bf16") else mixed).tokens / least for name, least in seconds.items()}
    static = {name: rate for name, rate in rates.items() if name.startswith("static")}
    beside = static | {"continuous": rates["continuous"]}
    figures: dict[str, float | None] = {
        "torch_mixed_ratio_vs_static": rates["torch_mixed"] / max(static.values()),
        "torch_tokens_per_s_mixed": rates["torch_mixed"],
        "torch_tokens_per_s_bf16": rates["torch_bf16"],
        "hf_tokens_per_s_bf16": rates["hf_bf16"],
    }
    return figures, {f"hf_tokens_per_s_mixed_{name}": rate for name, rate in beside.items()}


def _engine(folder: Path, dtype: str) -> TorchRolloutEngine:
    return TorchRolloutEngine(
        model_path=str(folder),
        dtype=dtype,
        max_prompt_tokens=PROMPT,
        max_new_tokens=LONGEST,
        inputs_folder=folder,
        folder_version=0,
    )


def _best(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns the seconds of each kind of work, the minimum of interleaved rounds."""
    least = dict.fromkeys(runs, float("inf"))
    for number in range(ROUNDS):
        progress(f"generation, round {number + 1} of {ROUNDS}")
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            least[name] = min(least[name], time.perf_counter() - started)
    return least


def _static(model: Any, work: Work, size: int) -> Callable[[], None]:
    """Returns a runner of `generate` over static batches, each as long as its longest response."""

    def run() -> None:
        for start in range(0, len(work.prompts), size):
            ids = torch.from_numpy(work.prompts[start : start + size].astype(np.int64))
            length = int(work.lengths[start : start + size].max())
            with torch.no_grad():
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    num_return_sequences=work.samples,
                    max_new_tokens=length,
                    min_new_tokens=length,
                    pad_token_id=0,
                    eos_token_id=None,
                )

    return run


def _continuous(model: Any, work: Work) -> Callable[[], None]:
    """Returns a runner of transformers' continuous batching, where each request has its own length."""
    sampling = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=LONGEST, eos_token_id=-1, pad_token_id=0)
    # Large enough for all requests. Without sizes, transformers would ask for a GPU's free memory to choose its own.
    sizes = ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=256)

    def run() -> None:
        with model.continuous_batching_context_manager(
            sampling, continuous_batching_config=sizes, sft=False
        ) as manager:
            for prompt, length in zip(work.prompts.tolist(), work.lengths.tolist(), strict=True):
                manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            finished = 0
            while finished < len(work.prompts):
                if (output := manager.get_result(timeout=1)) is not None:
                    finished += output.is_finished()
                elif not manager.is_running():
                    raise RuntimeError("transformers' continuous batching ended before all requests were answered")

    return run
