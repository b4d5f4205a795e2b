"""The small model, the specs and the experience of the benchmark of exactness.

Consumes a type, an engine and a value of `exact`; produces specs, engines, and iterations of sealed experience.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.experience import seal_responses
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.models.model_folder import make_model
from yatt_core.protocols.engines import RankContext, RolloutEngine, TrainEngine
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
VOCABULARY = 512
PROMPTS = 4
SAMPLES = 8
PROMPT = 48
RESPONSE = 48
STOP = 1

TRAINERS: dict[str, dict[str, Any]] = {
    "torch": {"kind": "torch", "ranks": 1},
    "fsdp2": {"kind": "fsdp2", "ranks": 1},
    "megatron": {"kind": "megatron", "data_parallel_size": 1},
}


def spec_of(dtype: str, trainer: str = "torch", exact: bool | str = True) -> RunSpec:
    """Returns the spec of a run whose responses come from the torch engine."""
    tree: dict[str, Any] = {
        "name": "exact", "seed": SEED, "iterations": 1000, "exact": exact,
        "model": {
            "kind": "from_config", "hidden_size": 128, "layers": 2, "heads": 4, "key_value_heads": 2,
            "intermediate_size": 352, "max_positions": 256,
        },
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": PROMPTS,
            "logical_shards": 1, "max_prompt_tokens": PROMPT,
        },
        "rollout": {
            "engine": {"kind": "torch", "instances": 1, "dtype": dtype}, "samples_per_prompt": SAMPLES,
            "max_new_tokens": RESPONSE, "temperature": 0.9,
        },
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {"mini_batches": 2},
        "trainer": {
            "engine": {**TRAINERS[trainer], "dtype": dtype, "micro_batch_tokens": 2048},
            "optimizer": {"learning_rate": 1e-3},
        },
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.exact")


def model_in(folder: Path) -> Path:
    """Makes the model; returns its folder."""
    model = folder / "model"
    model.mkdir(parents=True)
    sizes = spec_of("float32").model
    assert isinstance(sizes, ModelFromConfig)
    make_model(sizes, VOCABULARY, SEED, model)
    return model


def request_of(iteration: int, prompts: int = PROMPTS) -> GenerateRequest:
    """Draws prompts of mixed lengths; responses end at a stop token or at the limit."""
    noise = np.random.default_rng([SEED, iteration])
    lengths = noise.integers(1, PROMPT + 1, prompts)
    return GenerateRequest(
        prompts=[noise.integers(2, VOCABULARY, length).astype(np.int32) for length in lengths],
        seeds=noise.integers(0, 2**63, (prompts, SAMPLES)).astype(np.uint64),
        max_new_tokens=RESPONSE,
        stop_tokens=(STOP,),
        weight_version=iteration - 1,
        temperature=0.9,
    )


def sampler_of(spec: RunSpec, model: Path) -> RolloutEngine:
    """Builds the rollout engine, whose weights arrive later."""
    return build_rollout_engine(spec, str(model), model)


@contextmanager
def in_a_process_of_its_own() -> Iterator[None]:
    """Samples as in a run, where an exact trainer in another process does not decide which kernels a sampler has."""
    asked = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked)


def trainer_of(spec: RunSpec, folder: Path, model: Path) -> TrainEngine:
    """Builds a trainer of one rank at version 0."""
    trainer = build_train_engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    return trainer


def send(trainer: TrainEngine, sampler: RolloutEngine) -> None:
    """Gives the sampler the trainer's weights."""
    sampler.update_weights(dict(trainer.stream_weights()), trainer.version)


def learn(trainer: TrainEngine, task: BatchTask) -> None:
    """Takes an update."""
    prepared = trainer.prepare(task)
    assert prepared is not None
    trainer.learn(task, prepared)


@dataclass
class Loop:
    """A sampler and a trainer that take iterations: generate, seal, learn, send the weights back."""

    spec: RunSpec
    folder: Path
    model: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.sampler = sampler_of(self.spec, self.model)
        self.trainer = trainer_of(self.spec, self.folder, self.model)
        send(self.trainer, self.sampler)

    def take(self) -> str:
        """Takes one iteration; returns what tells it from any other: the responses' bits and the weights after it."""
        iteration = self.trainer.version + 1
        request = request_of(iteration)
        with in_a_process_of_its_own():
            result = self.sampler.generate(request)
        learn(self.trainer, seal_responses(self.folder, iteration, request, result))
        send(self.trainer, self.sampler)
        return f"{result.tokens.tobytes().hex()}{result.log_probs.tobytes().hex()}{self.trainer.weights_digest()}"

    def save(self, folder: Path) -> Path:
        """Writes a checkpoint into a new folder and returns the folder."""
        folder.mkdir()
        self.trainer.freeze_state()(folder)
        return folder

    def restore(self, folder: Path, version: int) -> None:
        """Continues from a checkpoint."""
        self.trainer.restore(folder, version)
        send(self.trainer, self.sampler)
