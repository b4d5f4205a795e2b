"""The bytes that a trainer rank reads for an iteration, over its share; part of `benchmarks.overhead`.

Consumes a folder and the number of ranks. Seals random responses of realistic lengths as an iteration's shards, and has
the product's trainer prepare and learn from them on real ranks, each a process. Produces counts, which no load changes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from yatt_core.engines.train.base.own_rows import load_own_batch, load_own_columns
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.engines.train.steps.plan import PlanShape
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.models.model_folder import make_model
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import READ_BYTES, RECEIVED_BYTES, BatchTask, PrepareReceipt, ShardRef
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
VOCABULARY = 512
PROMPTS = 32
SAMPLES = 8
SHARDS = 16
PROMPT = 32
LEAST = 64
RESPONSE = 192
"""Tokens of a prompt, and the least and the largest number of tokens of a response."""
MICRO_BATCH = 4 * (PROMPT + RESPONSE)
DEADLINE = 600.0
"""Seconds after which a rank that says nothing is given up."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What the ranks read.

    files: the largest number of bytes that a rank reads of files, over its share of all that ranks read.
    rows: the same for the outlines and rows that it receives, over its share of all rows.
    by_rank: each rank's bytes.
    """

    files: float
    rows: float
    by_rank: list[Mapping[str, float]]


def spec_of(ranks: int) -> RunSpec:
    """Returns the spec of a run that needs old and reference log-probabilities, with one optimizer step an iteration."""
    tree: dict[str, Any] = {
        "name": "overhead", "seed": SEED, "iterations": 10,
        "model": {
            "kind": "from_config", "hidden_size": 32, "layers": 2, "heads": 4, "key_value_heads": 2,
            "intermediate_size": 48, "max_positions": 256,
        },
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": PROMPTS,
            "logical_shards": SHARDS, "max_prompt_tokens": PROMPT,
        },
        "rollout": {"samples_per_prompt": SAMPLES, "max_new_tokens": RESPONSE},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {"kl": {"coefficient": 0.05}, "entropy": {"kind": "bonus", "coefficient": 0.01}},
        "trainer": {
            "engine": {"kind": "torch", "ranks": ranks, "micro_batch_tokens": MICRO_BATCH},
            "optimizer": {"learning_rate": 1e-4},
        },
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.overhead")


def seal(folder: Path) -> BatchTask:
    """Seals an iteration's random responses; every second one is correct."""
    noise = np.random.default_rng(SEED)
    references = []
    for shard in range(SHARDS):
        rows: list[dict[str, Any]] = []
        for ordinal in range(shard, PROMPTS, SHARDS):
            prompt = noise.integers(0, VOCABULARY, PROMPT).tolist()
            rows += [_row(noise, ordinal, sample, prompt) for sample in range(SAMPLES)]
        log = ShardLog(folder, WorkKey(run="overhead", branch=0, iteration=1, phase="collect", wave=0, shard=shard), 1)
        receipt = log.seal(pa.Table.from_pylist(rows, schema=experience_schema(["exact"], rows[0])), {})
        references.append(ShardRef(receipt.folder, receipt.manifest_sha256))
    return BatchTask(WorkKey("overhead", 0, 1, "learn"), 1, tuple(references))


def measure_reads(folder: Path, ranks: int) -> Reads:
    """Has all ranks prepare and learn from one iteration; returns what they read."""
    spec = spec_of(ranks)
    task = seal(folder)
    model = folder / "model"
    model.mkdir()
    assert isinstance(spec.model, ModelFromConfig)
    make_model(spec.model, VOCABULARY, SEED, model)
    context = RankContext(folder, folder / "inputs", str(model), 0)
    by_rank, prepared = _on_ranks(spec, context, task, ranks)
    files = [timing[READ_BYTES] for timing in by_rank]
    rows = [timing[RECEIVED_BYTES] for timing in by_rank]
    whole = _whole_rows(context, task, prepared)
    return Reads(max(files) * ranks / sum(files), max(rows) * ranks / whole, by_rank)


def _whole_rows(context: RankContext, task: BatchTask, prepared: PrepareReceipt) -> int:
    """Returns the bytes of the outline and of all rows, each once."""
    plans = Plans(spec_of(1), PlanShape(1, MICRO_BATCH, epochs=1, mini_batches=1))
    batch, parts, read = load_own_batch(plans, context, task, Collective())
    _, columns = load_own_columns(
        spec=plans.spec, context=context, batch=batch, parts=parts, prepared=prepared, collective=Collective()
    )
    return read.received + columns.received


def _on_ranks(
    spec: RunSpec, context: RankContext, task: BatchTask, ranks: int
) -> tuple[list[Mapping[str, float]], PrepareReceipt]:
    """Returns what each rank read, and the receipt of `prepare`."""
    processes = multiprocessing.get_context("spawn")
    receipts: Any = processes.Queue()
    found: Any = processes.Queue()
    address = hold_address()
    work = [(rank, ranks, address, spec, context, task, receipts, found) for rank in range(ranks)]
    others = [processes.Process(target=_run, args=each) for each in work[1:]]
    for process in others:
        process.start()
    prepared = _run(*work[0])
    timings = dict(found.get(timeout=DEADLINE) for _ in work)
    for process in others:
        process.join(DEADLINE)
    return [timings[rank] for rank in range(ranks)], prepared


def _run(
    rank: int,
    ranks: int,
    address: str,
    spec: RunSpec,
    context: RankContext,
    task: BatchTask,
    receipts: Any,
    found: Any,
) -> PrepareReceipt:
    """Runs one rank. receipts: brings the receipt of `prepare` from rank 0. found: takes (rank, what it read)."""
    engine = TorchTrainEngine(spec, context)
    engine.connect(rank, ranks, address)
    engine.initialise()
    prepared = engine.prepare(task)
    if prepared is None:
        prepared = receipts.get(timeout=DEADLINE)
    else:
        for _ in range(1, ranks):
            receipts.put(prepared)
    timing = engine.learn(task, prepared).timing
    found.put((rank, {name: timing[name] for name in (READ_BYTES, RECEIVED_BYTES)}))
    assert isinstance(prepared, PrepareReceipt)
    return prepared


def _row(noise: np.random.Generator, ordinal: int, sample: int, prompt: list[int]) -> dict[str, Any]:
    length = int(noise.integers(LEAST, RESPONSE + 1))
    right = sample % 2 == 1
    return {
        "prompt_ordinal": ordinal, "sample": sample, "prompt_id": f"p{ordinal}", "source": 0, "prompt": "",
        "prompt_tokens": prompt, "response": "", "response_tokens": noise.integers(0, VOCABULARY, length).tolist(),
        "log_probs_sampler": noise.normal(-2.5, 0.3, length).tolist(), "loss_mask": [True] * length,
        "finish": "stop", "truncated": False, "weight_version": 0, "reward": float(right), "correct": right,
        "reward_error": None, "reward/exact": float(right),
    }  # fmt: skip
