"""Engines for the contract tests: each case names a builder, the weights of two versions, and a vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from yatt_core.engines.dense.kernels import KernelChoice
from yatt_core.engines.rollout.torch.continuous import ContinuousTorchEngine
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.protocols.engines import RolloutEngine, Tensors
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import VirtualRollout

VOCABULARY = 40
STOP = 1
MAX_PROMPT = 320
MAX_NEW = 24


@dataclass
class Case:
    """An engine under the contract.

    weights: maps a version to its tensors.
    folder: the model folder.
    """

    name: str
    engine: RolloutEngine
    weights: Callable[[int], Tensors]
    folder: Path


def build_model(folder: Path, kind: str) -> None:
    """Writes a small model whose next token is neither certain nor a coin toss.

    `odd` has widths that fill no whole number of vectors; `wide` has the smallest head size that vLLM accepts; `paired`
    has it too, and heads for two devices.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 512}
    if kind in ("tied", "wide", "paired"):
        heads = 2 if kind == "wide" else 4
        model = Qwen2ForCausalLM(
            Qwen2Config(
                hidden_size=128 if kind == "paired" else 64,
                intermediate_size=172,
                num_attention_heads=heads,
                num_key_value_heads=heads // 2,
                tie_word_embeddings=True,
                **common,
            )
        )
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=90,
                intermediate_size=117,
                num_attention_heads=3,
                num_key_value_heads=3,
                tie_word_embeddings=False,
                **common,
            )
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    model.save_pretrained(folder)


def weights_of(folder: Path, version: int) -> Tensors:
    """Returns the weights of a version: the folder's own for version 0, perturbed ones for the others."""
    from safetensors.numpy import load_file

    rng = np.random.default_rng(version)
    tensors = load_file(folder / "model.safetensors")
    if version == 0:
        return tensors
    return {name: (t + 0.05 * rng.standard_normal(t.shape)).astype(np.float32) for name, t in tensors.items()}


def torch_case(folder: Path, dtype: str = "float32", name: str = "torch") -> Case:
    """Builds `torch` on the fast path, `torch-general` on transformers' module, `torch-waiting` or `torch-continuous`.

    `torch-waiting` decodes few sequences at a time, so that others wait; `torch-continuous` answers several calls together.
    """
    kernels: KernelChoice = "general" if name == "torch-general" else "auto"
    if name == "torch-continuous":
        together = ContinuousTorchEngine(str(folder), dtype, MAX_PROMPT, MAX_NEW, folder, max_num_seqs=48)
        return Case(name, together, lambda version: weights_of(folder, version), folder)
    few = 12 if name == "torch-waiting" else None
    engine = TorchRolloutEngine(str(folder), dtype, MAX_PROMPT, MAX_NEW, folder, kernels=kernels, max_num_seqs=few)
    return Case(name, engine, lambda version: weights_of(folder, version), folder)


def virtual_case(folder: Path) -> Case:
    spec = VirtualRollout(base_seconds=0, seconds_per_sequence=0, vocabulary=VOCABULARY, median_tokens=12, sigma=0.8)

    def weights(version: int) -> Tensors:
        return {"state": np.full(32, version, np.uint8)}

    return Case("virtual", VirtualRolloutEngine(spec, seed=7), weights, folder)


def vllm_case_of(folder: Path, takes_changes: bool = False, **settings: Any) -> Case:
    from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
    from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH

    spec = VllmRollout(**{"instances": 1, "dtype": "float32", **settings})
    engine = ServedRolloutEngine(VLLM_LAUNCH, str(folder), spec, MAX_PROMPT, MAX_NEW, takes_changes=takes_changes)
    return Case("vllm", engine, lambda version: weights_of(folder, version), folder)


def build_case(name: str, folder: Path) -> Case:
    """Builds the named engine with the weights of version 0; `torch/bfloat16` computes in bfloat16."""
    makers = {"virtual": virtual_case, "vllm": vllm_case_of}
    kind, _, dtype = name.partition("/")
    case = makers[name](folder) if name in makers else torch_case(folder, dtype or "float32", kind)
    case.engine.update_weights(case.weights(0), 0)
    return case


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """Returns random prompts without the stop token."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, VOCABULARY, length).astype(np.int32) for length in lengths]


def request_of(
    prompts: Sequence[np.ndarray], samples: int = 1, *, seeds: np.ndarray | None = None, **options: Any
) -> GenerateRequest:
    """Builds a request with seeds that count up from 1000."""
    if seeds is None:
        seeds = np.arange(1000, 1000 + len(prompts) * samples, dtype=np.uint64).reshape(len(prompts), samples)
    values: dict[str, Any] = {"max_new_tokens": 12, "stop_tokens": (STOP,), "weight_version": 0, **options}
    return GenerateRequest(prompts, seeds, **values)


def rows_of(result: GenerateResult) -> list[tuple[bytes, bytes, int]]:
    """Returns each response's tokens, log-probability bits and finish reason."""
    bounds = np.concatenate([[0], np.cumsum(result.lengths)])
    return [
        (result.tokens[a:b].tobytes(), result.log_probs[a:b].tobytes(), int(finish))
        for a, b, finish in zip(bounds[:-1], bounds[1:], result.finish, strict=True)
    ]


def result_digest(result: GenerateResult) -> str:
    """Returns the sha256 over all rows."""
    return hashlib.sha256(repr(rows_of(result)).encode()).hexdigest()
