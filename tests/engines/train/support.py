"""A tiny model folder, random sealed experience and specs for the trainers' tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from yatt_core.checkpoints.contents import open_tensors
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.experience.batch import ExperienceBatch, load_batch
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, ShardRef, UpdateReceipt
from yatt_core.spec.run import RunSpec

VOCABULARY = 24
MAX_NEW_TOKENS = 7


ONLY_FILE = "rank-00000-of-00001.safetensors"
"""The file of each subfolder of a checkpoint that a single rank has written."""


def saved_tensors(checkpoint: Path, subfolder: str = "weights") -> dict[str, np.ndarray]:
    """Reads the whole tensors in a subfolder of a checkpoint."""
    files = open_tensors(checkpoint, subfolder)
    return {name: files.read(name) for name in files.shapes}


def weights_of(engine: Any) -> dict[str, np.ndarray]:
    """Copies the tensors that go to the rollout engines; every rank must call it, but only rank 0's result is used."""
    return {name: array.copy() for name, array in engine.stream_weights()}


def make_model_folder(folder: Path, seed: int = 0, **options: Any) -> Path:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        **options,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def make_spec(**parts: Any) -> RunSpec:
    """Builds a spec with one rank; parts replace or extend its top-level keys."""
    tree: dict[str, Any] = {
        "name": "test",
        "seed": 3,
        "iterations": 10,
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": 6},
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": MAX_NEW_TOKENS, "temperature": 0.8},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {},
        "trainer": {"engine": {"kind": "torch", "ranks": 1}, "optimizer": {"learning_rate": 1e-2, "epsilon": 1e-4}},
    }
    for name, value in parts.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
    return RunSpec.model_validate(tree)


def random_rows(
    iteration: int, prompts: int = 6, samples: int = 4, seed: int = 0, vocabulary: int = VOCABULARY
) -> list[dict[str, Any]]:
    """Returns ragged samples: prompts of 1 to 9 tokens, responses of 1 to 7, a few of whose tokens are masked."""
    noise = np.random.default_rng([seed, iteration])
    rows = []
    for ordinal in range(prompts * (iteration - 1), prompts * iteration):
        prompt = noise.integers(0, vocabulary, noise.integers(1, 10)).tolist()
        for sample in range(samples):
            length = int(noise.integers(1, MAX_NEW_TOKENS + 1))
            reward = float(noise.integers(0, 2))
            rows.append(
                {
                    "prompt_ordinal": ordinal,
                    "sample": sample,
                    "prompt_id": f"p{ordinal}",
                    "source": 0,
                    "prompt": "",
                    "prompt_tokens": prompt,
                    "response": "",
                    "response_tokens": noise.integers(0, vocabulary, length).tolist(),
                    "log_probs_sampler": noise.normal(-2.5, 0.3, length).tolist(),
                    "loss_mask": (noise.random(length) < 0.9).tolist(),
                    "finish": "stop",
                    "truncated": False,
                    "weight_version": iteration - 1,
                    "reward": reward,
                    "correct": reward == 1.0,
                    "reward_error": None,
                    "reward/exact": reward,
                }
            )
    return rows


def write_shards(run_folder: Path, iteration: int, rows: list[dict[str, Any]], shards: int = 2) -> BatchTask:
    """Seals the rows as an iteration's shards, distributed by prompt, and returns the task that names them."""
    references = []
    for shard in range(shards):
        part = [row for row in rows if row["prompt_ordinal"] % shards == shard]
        log = ShardLog(run_folder, WorkKey("r", 0, iteration, "collect", 0, shard), 1)
        receipt = log.seal(pa.Table.from_pylist(part, schema=experience_schema(["exact"], rows[0])), {})
        references.append(ShardRef(receipt.folder, receipt.manifest_sha256))
    return BatchTask(WorkKey("r", 0, iteration, "learn"), 1, tuple(references))


def random_task(run_folder: Path, iteration: int, seed: int = 0, vocabulary: int = VOCABULARY) -> BatchTask:
    return write_shards(run_folder, iteration, random_rows(iteration, seed=seed, vocabulary=vocabulary))


def level_task(run_folder: Path, iteration: int, vocabulary: int = VOCABULARY) -> BatchTask:
    """Returns a task whose samples all have the same reward, with a mean that is off by round-off."""
    rows = random_rows(iteration, samples=3, vocabulary=vocabulary)
    assert np.mean([0.1] * 3) != 0.1
    return write_shards(run_folder, iteration, [{**row, "reward": 0.1} for row in rows])


def batch_of(run_folder: Path, task: BatchTask) -> ExperienceBatch:
    return load_batch(run_folder, task.shards)


def make_engine(spec: RunSpec, run_folder: Path, model_folder: Path) -> TorchTrainEngine:
    """Starts an engine of one rank."""
    engine = TorchTrainEngine(spec, RankContext(run_folder, run_folder / "inputs", str(model_folder), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    return engine


def update(engine: TorchTrainEngine, task: BatchTask) -> UpdateReceipt:
    return engine.learn(task, prepare(engine, task))


def prepare(engine: TorchTrainEngine, task: BatchTask) -> PrepareReceipt:
    receipt = engine.prepare(task)
    assert receipt is not None
    return receipt
