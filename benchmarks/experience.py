"""Writes generated responses as an iteration's sealed experience, for benchmarks that learn without controllers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask, ShardRef


def seal_responses(folder: Path, iteration: int, request: GenerateRequest, result: GenerateResult) -> BatchTask:
    """Seals the responses as an iteration's only shard; half of each group is correct."""
    samples = request.seeds.shape[1]
    rows = []
    bounds = np.concatenate([[0], np.cumsum(result.lengths)])
    for row in range(len(result.lengths)):
        prompt, sample = divmod(row, samples)
        part = slice(bounds[row], bounds[row + 1])
        rows.append(
            {
                "prompt_ordinal": prompt + iteration * len(request.prompts), "sample": sample, "prompt_id": f"p{prompt}",
                "source": 0, "prompt": "", "prompt_tokens": request.prompts[prompt].tolist(), "response": "",
                "response_tokens": result.tokens[part].tolist(), "log_probs_sampler": result.log_probs[part].tolist(),
                "loss_mask": [True] * int(result.lengths[row]), "finish": "length", "truncated": True,
                "weight_version": iteration - 1, "reward": float(sample % 2), "correct": sample % 2 == 1,
                "reward_error": None, "reward/exact": float(sample % 2),
            }
        )  # fmt: skip
    log = ShardLog(folder, WorkKey(run="benchmark", branch=0, iteration=iteration, phase="collect", wave=0, shard=0), 1)
    receipt = log.seal(pa.Table.from_pylist(rows, schema=experience_schema(["exact"], rows[0])), {})
    return BatchTask(
        WorkKey("benchmark", 0, iteration, "learn"), 1, (ShardRef(receipt.folder, receipt.manifest_sha256),)
    )
