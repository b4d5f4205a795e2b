"""How far are the trainers from a plain transformers model after five AdamW steps, and from its gradient norms?

Consumes only the scenarios of the trainers' contract tests (float32, ragged batches, micro-batches, with and without
clipping). Each rank is a process. Part of `benchmarks.engines`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import progress
from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import CLIP, UNCLIPPED, Expected, expect, spec_of
from yatt_core.installed import MEGATRON, has_distribution

MEGATRON_ENGINE = {"kind": "megatron", "dtype": "float32", "micro_batch_tokens": 60, "data_parallel_size": 1}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "megatron_tp2": (2, {**MEGATRON_ENGINE, "tensor_model_parallel_size": 2}),
    "megatron_pp2": (2, {**MEGATRON_ENGINE, "pipeline_model_parallel_size": 2}),
    "megatron_dp2": (2, {**MEGATRON_ENGINE, "data_parallel_size": 2}),
    "fsdp2": (2, {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}),
    "torch": (1, {"kind": "torch", "ranks": 1, "micro_batch_tokens": 60}),
}


def measure_training(folder: Path) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns, by layout, the largest difference in any weight and the largest relative difference in any gradient norm.

    The figures of an engine that is not installed are None. The second dict has the torch trainer's, as a baseline.
    """
    expected = expect(folder / "expected", "qwen2")
    gaps: dict[str, float | None] = {}
    norms = []
    for name, (ranks, engine) in LAYOUTS.items():
        if engine["kind"] == "megatron" and not has_distribution(MEGATRON):
            gaps[name] = None
            continue
        progress(f"training on {name}")
        gaps[name], norm = _gaps(folder / name, expected, ranks, engine)
        norms.append(norm)
    torch_gap = gaps.pop("torch")
    figures = {f"{name}_weight_gap": gap for name, gap in gaps.items()} | {"grad_norm_gap_max": max(norms)}
    return figures, {"torch_weight_gap": torch_gap}


def _gaps(folder: Path, expected: Expected, ranks: int, engine: dict[str, Any]) -> tuple[float, float]:
    clips = (UNCLIPPED, CLIP)
    folder.mkdir()
    jobs = [Job(spec_of(engine, clip), expected.model, range(1, 6)) for clip in clips]
    weights = []
    norms = []
    for clip, found in zip(clips, run_ranks(ranks, jobs, folder)[0], strict=True):
        wanted = expected.weights[clip]
        assert sorted(found.weights) == sorted(wanted)
        weights += [float(np.abs(found.weights[name] - array).max()) for name, array in wanted.items()]
        for receipt, norm in zip(found.receipts, expected.norms[clip], strict=True):
            norms.append(abs(float(receipt.metrics["grad_norm"]) / norm - 1))
    return max(weights), max(norms)
