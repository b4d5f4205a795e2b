"""How much memory does an update take beyond parameters and gradients, with a vocabulary of 150,000?

A small model learns from 4,096 response tokens in one micro-batch. `learn_peak_mb_vocab_150k` is the peak growth of
private memory in the second update, when the moments exist, less the gradients that the update itself allocates, in MB
(10^6 bytes), while freed tensors are returned to the system at once: the worst rank of the worst engine;
`learn_peak_mb_vocab_150k_ENGINE` is each engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import progress
from benchmarks.experience import seal_responses
from benchmarks.grow.models import FSDP2, MEGATRON, SEED, TINY, TORCH, spec_of, write_model
from benchmarks.grow.ranks import Rank, local_part, on_ranks, policy_of, private_growth, return_freed_memory
from yatt_core.installed import MEGATRON as MEGATRON_PACKAGE
from yatt_core.installed import has_distribution
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask

VOCABULARY = 150_000
TOKENS = 4096
PROMPT = 8
RESPONSE = 512
SAMPLES = 4
ENGINES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "torch": (1, TORCH),
    "torch_general": (1, TORCH | {"kernels": "general"}),
    "fsdp2": (2, FSDP2),
    "megatron": (2, MEGATRON),
}
"""Ranks and engine."""


def learning_figures(folder: Path, vocabulary: int = VOCABULARY) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures and, by engine, the bytes of each rank."""
    write_model(folder / "model", vocabulary, TINY)
    figures = dict[str, float]()
    details = dict[str, Any]()
    for name, (ranks, engine) in ENGINES.items():
        if name == "megatron" and not has_distribution(MEGATRON_PACKAGE):
            continue
        progress(f"learning: {name}")
        # Each copy of the model has a micro-batch of its own.
        copies = 1 if name == "megatron" else ranks
        details[name] = on_ranks(ranks, learn, engine, folder, copies, vocabulary)
        figures[f"learn_peak_mb_vocab_150k_{name}"] = max(details[name]) / 1e6
    return {"learn_peak_mb_vocab_150k": max(figures.values()), **figures}, details


def learn(rank: Rank, engine_spec: dict[str, Any], folder: Path, copies: int, vocabulary: int) -> int:
    """Returns the bytes that the second update takes on this rank."""
    return_freed_memory()
    prompts = copies * TOKENS // (SAMPLES * RESPONSE)
    budget = TOKENS + SAMPLES * (TOKENS // RESPONSE) * PROMPT
    spec = spec_of(
        engine=engine_spec | {"micro_batch_tokens": budget},
        sizes=TINY,
        prompts=prompts,
        prompt=PROMPT,
        response=RESPONSE,
    )
    place = folder / engine_spec["kind"] / engine_spec.get("kernels", "auto")
    context = RankContext(place, place / "inputs", str(folder / "model"), 0)
    engine = rank.engine(spec, context)
    engine.initialise()
    growth = 0
    for iteration in (1, 2):
        own = random_experience(place, iteration, prompts, vocabulary) if rank.rank == 0 else None
        task: BatchTask = rank.shared(own)
        prepared = rank.shared(engine.prepare(task))
        growth = private_growth(partial(engine.learn, task, prepared))
    gradients: int = 0
    if engine_spec["kind"] == "fsdp2":
        # The other engines hold them from one update to the next.
        gradients = sum(local_part(parameter).nbytes for parameter in policy_of(engine).loaded().parameters())
    return growth - gradients


def random_experience(
    folder: Path, iteration: int, prompts: int, vocabulary: int, prompt: int = PROMPT, response: int = RESPONSE
) -> BatchTask:
    """Seals random responses, all of the same length.

    prompt, response: tokens of each.
    """
    noise = np.random.default_rng([SEED, iteration])
    rows = prompts * SAMPLES
    request = GenerateRequest(
        prompts=list(noise.integers(0, vocabulary, (prompts, prompt)).astype(np.int32)),
        seeds=np.zeros((prompts, SAMPLES), dtype=np.uint64),
        max_new_tokens=response,
        stop_tokens=(),
        weight_version=iteration - 1,
    )
    result = GenerateResult(
        tokens=noise.integers(0, vocabulary, rows * response).astype(np.int32),
        log_probs=np.full(rows * response, -12.0, dtype=np.float32),
        lengths=np.full(rows, response, dtype=np.int32),
        finish=np.zeros(rows, dtype=np.int8),
        weight_version=iteration - 1,
        seconds=1.0,
    )
    return seal_responses(folder, iteration, request, result)
