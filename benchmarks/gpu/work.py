"""The models and the work by which claims about GPUs are checked: sizes, specs, prompts, and made-up experience.

Consumes sizes. Produces specs of runs with the torch rollout engine and any trainer, folders of models, requests, and tasks of
sealed experience.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experience import seal_responses
from yatt_core.models.model_folder import make_model
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
FIRST_TOKEN = 2
"""Token 0 is padding, whose embedding not every trainer trains, and 1 ends a response."""
LOG_PROBABILITY = -8.0
"""Of each token of made-up experience."""
TRAINERS: Mapping[str, Mapping[str, Any]] = {
    "torch": {"kind": "torch", "ranks": 1},
    "fsdp2": {"kind": "fsdp2", "ranks": 1},
    "megatron": {"kind": "megatron", "data_parallel_size": 1},
}
TWO_RANKS: Mapping[str, Mapping[str, Any]] = {
    "fsdp2": {"kind": "fsdp2", "ranks": 2},
    "megatron": {"kind": "megatron", "data_parallel_size": 1, "tensor_model_parallel_size": 2},
}


@dataclass(frozen=True, slots=True)
class Work:
    """A model, a decode batch, and a micro-batch. prompt, response: tokens of each. gemm: a matrix's side."""

    hidden: int = 2048
    layers: int = 18
    heads: int = 16
    key_value_heads: int = 8
    intermediate: int = 6144
    vocabulary: int = 65_536
    prompts: int = 16
    samples: int = 8
    prompt: int = 256
    response: int = 512
    micro_batch_tokens: int = 16_384
    gemm: int = 8192

    @property
    def rows(self) -> int:
        """The tokens that the trainer computes: a group's prompt once, and all but the last token of each response."""
        return self.prompts * (self.prompt + self.samples * (self.response - 1))

    @property
    def counted(self) -> int:
        """The tokens of all responses."""
        return self.prompts * self.samples * self.response


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a round of claims. speed: of the measures of speed. bits: of everything that compares numbers."""

    speed: Work
    bits: Work


GPU_SIZES = Sizes(
    speed=Work(),
    bits=Work(
        hidden=512,
        layers=4,
        heads=8,
        key_value_heads=4,
        intermediate=1408,
        vocabulary=32_000,
        prompts=4,
        samples=8,
        prompt=48,
        response=48,
        micro_batch_tokens=2048,
    ),
)
"""A billion parameters for speed, and 28 million for bits, which cores have to compute too."""
STAND_IN_SIZES = Sizes(
    speed=Work(
        hidden=32,
        layers=2,
        heads=4,
        key_value_heads=2,
        intermediate=48,
        vocabulary=512,
        prompts=2,
        samples=4,
        prompt=8,
        response=5,
        micro_batch_tokens=64,
        gemm=32,
    ),
    bits=Work(
        hidden=64,
        layers=2,
        heads=4,
        key_value_heads=2,
        intermediate=96,
        vocabulary=512,
        prompts=4,
        samples=8,
        prompt=48,
        response=48,
        micro_batch_tokens=2048,
    ),
)
"""Small enough for two cores. The vocabulary is that of the prompts of `benchmarks.exact`."""


def spec_of(
    work: Work,
    trainer: Mapping[str, Any] | None = None,
    dtype: str = "bfloat16",
    exact: bool = False,
    learning_rate: float = 1e-6,
) -> RunSpec:
    """Returns the spec of a run. trainer: its engine's section without the type; None for the torch trainer."""
    engine = dict(TRAINERS["torch"] if trainer is None else trainer)
    tree: dict[str, Any] = {
        "name": "gpu", "seed": SEED, "iterations": 1000, "exact": exact,
        "model": {
            "kind": "from_config", "hidden_size": work.hidden, "layers": work.layers, "heads": work.heads,
            "key_value_heads": work.key_value_heads, "intermediate_size": work.intermediate,
            "max_positions": 2 * (work.prompt + work.response),
        },
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": work.prompts,
            "logical_shards": 1, "max_prompt_tokens": work.prompt,
        },
        "rollout": {
            "engine": {"kind": "torch", "instances": 1, "dtype": dtype},
            "samples_per_prompt": work.samples, "max_new_tokens": work.response,
        },
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {},
        "trainer": {
            "engine": engine | {"dtype": dtype, "micro_batch_tokens": work.micro_batch_tokens},
            # With the default, steps are made of the signs of gradients, however small.
            "optimizer": {"learning_rate": learning_rate, "epsilon": 1e-4},
        },
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.gpu")


def model_in(folder: Path, work: Work) -> Path:
    """Returns the folder of the model, which is made if it is not there yet."""
    made = folder / f"model-{work.hidden}x{work.layers}"
    if not made.exists():
        sizes = spec_of(work).model
        assert isinstance(sizes, ModelFromConfig)
        made.mkdir(parents=True)
        make_model(sizes, work.vocabulary, SEED, made)
    return made


def request_of(work: Work, iteration: int) -> GenerateRequest:
    """Draws random prompts; no response ends early."""
    noise = np.random.default_rng([SEED, iteration])
    return GenerateRequest(
        prompts=list(noise.integers(FIRST_TOKEN, work.vocabulary, (work.prompts, work.prompt)).astype(np.int32)),
        seeds=noise.integers(0, 2**63, (work.prompts, work.samples)).astype(np.uint64),
        max_new_tokens=work.response,
        stop_tokens=(),
        weight_version=0,
    )


def made_up_task(folder: Path, iteration: int, work: Work, full: bool = False) -> BatchTask:
    """Seals random responses as an iteration's experience. full: whether all of them are as long as they may be."""
    noise = np.random.default_rng([SEED, iteration, 1])
    rows = work.prompts * work.samples
    lengths = np.full(rows, work.response) if full else noise.integers(1, work.response + 1, rows)
    tokens = int(lengths.sum())
    result = GenerateResult(
        tokens=noise.integers(FIRST_TOKEN, work.vocabulary, tokens).astype(np.int32),
        log_probs=np.full(tokens, LOG_PROBABILITY, dtype=np.float32),
        lengths=lengths.astype(np.int32),
        finish=np.zeros(rows, dtype=np.int8),
        weight_version=iteration - 1,
        seconds=1.0,
    )
    return seal_responses(folder, iteration, request_of(work, iteration), result)
