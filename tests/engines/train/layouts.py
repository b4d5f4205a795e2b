"""The engines and layouts under the trainers' contract, and the expected results from a single process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.engines.train.plain import plain_grpo_step
from tests.engines.train.support import (
    VOCABULARY,
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    random_task,
    update,
    weights_of,
)
from tests.needs import NEEDS_MEGATRON
from yatt_core.protocols.receipts import UpdateReceipt
from yatt_core.spec.run import RunSpec

RATE = 1e-3
UNCLIPPED = 1e9
CLIP = 0.3
SEVERAL_STEPS = {"mini_batches": 2, "kl": {"coefficient": 0.05}, "entropy": {"kind": "bonus", "coefficient": 0.01}}
BUDGET = 60
"""Tokens per micro-batch; a rank's share of a step takes several micro-batches."""
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Layout:
    """An engine on a number of ranks.

    engine: the engine's section of the spec.
    family: the model family.
    """

    ranks: int
    engine: dict[str, Any] = field(hash=False)
    family: str = "qwen2"

    @property
    def has_model(self) -> bool:
        return bool(self.engine["kind"] != "virtual")


def _torch(ranks: int, *marks: pytest.MarkDecorator, **options: Any) -> Any:
    engine = {"kind": "torch", "ranks": ranks, "micro_batch_tokens": BUDGET, **options}
    return pytest.param(Layout(ranks, engine), id="-".join([f"torch-{ranks}", *options]), marks=marks)


def _virtual(ranks: int, *marks: pytest.MarkDecorator) -> Any:
    engine = {"kind": "virtual", "ranks": ranks, "fixed_seconds": 0.0, "seconds_per_token": 0.0}
    return pytest.param(Layout(ranks, engine), id=f"virtual-{ranks}", marks=marks)


def _fsdp2(ranks: int, *marks: pytest.MarkDecorator, **options: Any) -> Any:
    engine = {"kind": "fsdp2", "ranks": ranks, "dtype": "float32", "micro_batch_tokens": BUDGET, **options}
    name = "-".join([f"fsdp2-{ranks}", *options])
    return pytest.param(Layout(ranks, engine), id=name, marks=marks)


def _megatron(
    tensors: int, stages: int, copies: int, *marks: pytest.MarkDecorator, family: str = "qwen2", **options: Any
) -> Any:
    sizes = {
        "tensor_model_parallel_size": tensors,
        "pipeline_model_parallel_size": stages,
        "data_parallel_size": copies,
    }
    engine = {"kind": "megatron", "dtype": "float32", "micro_batch_tokens": BUDGET, **sizes, **options}
    name = "-".join([f"megatron-tp{tensors}-pp{stages}-dp{copies}", family, *options])
    return pytest.param(Layout(tensors * stages * copies, engine, family), id=name, marks=[NEEDS_MEGATRON, *marks])


VERIFY = pytest.mark.verify
LAYOUTS = [
    _torch(1),
    _torch(2, VERIFY),
    _virtual(1),
    _virtual(2, VERIFY),
    _fsdp2(2),
    _fsdp2(1, VERIFY),
    _fsdp2(4, VERIFY, reshard_after_forward=False),
    _fsdp2(2, VERIFY, activation_checkpointing=True),
    _fsdp2(2, VERIFY, cpu_offload=True),
    _megatron(2, 1, 1),
    _megatron(1, 1, 1, VERIFY, use_distributed_optimizer=False),
    _megatron(2, 1, 1, VERIFY, sequence_parallel=False, recompute_granularity="full"),
    _megatron(1, 2, 1, VERIFY),
    _megatron(1, 1, 2, VERIFY),
    _megatron(1, 1, 2, VERIFY, use_distributed_optimizer=False),
    _megatron(2, 2, 1, VERIFY),
    _megatron(2, 2, 1, VERIFY, family="qwen3"),
    _megatron(2, 1, 1, VERIFY, family="llama"),
    _megatron(2, 1, 2, VERIFY),
]
IN_BFLOAT16 = [
    _fsdp2(2, VERIFY, dtype="bfloat16"),
    _megatron(1, 1, 2, VERIFY, dtype="bfloat16"),
    _megatron(2, 1, 1, VERIFY, dtype="bfloat16", use_distributed_optimizer=False),
]
REPEATING = [
    _torch(1, dtype="bfloat16"),
    _torch(2, VERIFY, dtype="bfloat16"),
    _fsdp2(2, VERIFY, dtype="bfloat16", activation_checkpointing=True),
    _megatron(2, 1, 1, VERIFY, dtype="bfloat16"),
    *IN_BFLOAT16,
]


def spec_of(engine: dict[str, Any], clip: float, algorithm: dict[str, Any] | None = None) -> RunSpec:
    optimizer = {"learning_rate": RATE, "epsilon": 1e-4, "weight_decay": 0.05, "max_grad_norm": clip}
    rollout = {"engine": {"kind": "virtual" if engine["kind"] == "virtual" else "torch"}}
    return make_spec(
        rollout=rollout,
        trainer={"engine": engine, "optimizer": optimizer},
        algorithm=algorithm or {},
    )


@dataclass
class Expected:
    """Results of a single process.

    weights, norms: the results of plain loops, by the gradient norm at which they clip.
    several: the torch trainer's updates under `SEVERAL_STEPS`.
    checkpoint: the torch trainer's checkpoint at version 2.
    """

    model: Path
    weights: dict[float, Arrays]
    norms: dict[float, list[float]]
    several: list[UpdateReceipt]
    several_weights: Arrays
    checkpoint: Path


def _model_folder(folder: Path, family: str) -> Path:
    """Writes a Qwen2 with biases and tied embeddings, a Llama with an odd vocabulary, or a Qwen3 with normed heads.

    The size of Qwen3's heads is not the hidden size divided by their number.
    """
    if family == "qwen2":
        return make_model_folder(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
    common: dict[str, Any] = {**sizes, "tie_word_embeddings": False, "initializer_range": 0.2}
    torch.manual_seed(0)
    if family == "llama":
        LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY + 1, **common)).save_pretrained(folder)
    else:
        Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, head_dim=16, **common)).save_pretrained(folder)
    return folder


def expect(folder: Path, family: str) -> Expected:
    model = _model_folder(folder / "model", family)
    weights = {}
    norms = {}
    for clip in (UNCLIPPED, CLIP):
        weights[clip], norms[clip] = _plain_run(folder, model, clip)
    engine = make_engine(spec_of({"kind": "torch", "ranks": 1}, CLIP, SEVERAL_STEPS), folder, model)
    receipts = []
    for iteration in range(1, 5):
        receipts.append(update(engine, random_task(folder, iteration)))
        if iteration == 2:
            (folder / "checkpoint").mkdir()
            engine.freeze_state()(folder / "checkpoint")
    several = weights_of(engine)
    return Expected(model, weights, norms, receipts, several, folder / "checkpoint")


def _plain_run(folder: Path, path: Path, clip: float) -> tuple[Arrays, list[float]]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    adamw = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.05)
    norms = []
    for iteration in range(1, 6):
        task = random_task(folder / str(clip), iteration)
        batch = batch_of(folder / str(clip), task)
        norms.append(plain_grpo_step(model, adamw, batch, 0.8, clip))
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}, norms
