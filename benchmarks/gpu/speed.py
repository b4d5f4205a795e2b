"""How fast are the torch engines on a GPU, at a billion parameters in bfloat16? Measures, without limits.

A rollout engine generates 8 responses of 512 tokens for each of 16 prompts of 256 tokens. A trainer learns from them, sends its
weights back, and offloads and reloads its tensors: the product's own engines in one process, without orchestration. The
figures are the best of all rounds:

- `rollout_tokens_per_s`: generated tokens; `train_tokens_per_s`: rows that the trainer computes, where a group's
  prompt counts once;
- `train_mfu`: operations of those rows' forward and backward passes, divided by the data sheet's maximum in that
  time; None for a GPU that has no card in `yatt plan`; `train_gemm_fraction`: the same, relative to the rate of large
  products in this run;
- `sync_gb_s`: float32 weights from the trainer's memory to the engine's; `offload_gb_s`, `reload_gb_s`: the trainer's
  tensors;
- `rollout_peak_gib`, `train_peak_gib`: peak memory of tensors, as counted by torch; `parameters`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.experience import seal_responses
from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import Alone, started
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.work import Work, model_in, request_of, spec_of
from yatt_core.engines.device import own_device
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.planning.cluster import card_of, read_cards
from yatt_core.planning.shape import ModelShape, shape_of
from yatt_core.protocols.generation import GenerateResult
from yatt_core.protocols.receipts import BatchTask

ROUNDS = 2
GEMM_ROUNDS = 10
GIB = 1 << 30
Figures = dict[str, float | None]


def rollout_speed(place: Place) -> Finding:
    """Measures generation."""
    figures, _ = _generated(place)
    return Finding(True, f"{figures['rollout_tokens_per_s']:.0f} tokens per second", figures)


def train_speed(place: Place) -> Finding:
    """Measures updates, against the card's data sheet and against large products."""
    figures = _learnt(place)
    card = card_here()
    mfu = figures["train_mfu"]
    said = "an unknown card" if card is None else f"MFU {mfu:.2f} of the {card[1] / 1e12:.0f} TFLOP/s of the {card[0]}"
    return Finding(True, f"{said}; {figures['train_gemm_fraction']:.2f} of the rate of large products", figures)


def move_speed(place: Place) -> Finding:
    """Measures moves of weights and of the trainer's tensors."""
    trainer, _ = _trainer(place)
    figures = measure_moves(trainer, _engine(place))
    return Finding(True, ", ".join(f"{name[:-5]} {rate:.1f} GB/s" for name, rate in figures.items()), figures)


def card_here() -> tuple[str, float] | None:
    """Returns the name and the bfloat16 operations per second of this GPU's card; None if `yatt plan` has none for it."""
    if not torch.cuda.is_available():
        return None
    cards = read_cards()
    device = torch.cuda.get_device_properties(own_device())
    name = card_of(device.name, device.total_memory, cards)
    return None if name is None else (name, cards[name].flops)


@cache
def _engine(place: Place) -> TorchRolloutEngine:
    work = sizes_at(place).speed
    model = model_in(place.folder, work)
    return TorchRolloutEngine(
        model_path=str(model),
        dtype="bfloat16",
        max_prompt_tokens=work.prompt,
        max_new_tokens=work.response,
        inputs_folder=model,
        folder_version=0,
    )


@cache
def _trainer(place: Place) -> tuple[TorchTrainEngine, Path]:
    """Returns a trainer, and the folder of its run."""
    work = sizes_at(place).speed
    folder = new_folder(place, "speed")
    return started(Alone(), spec_of(work), folder, model_in(place.folder, work)), folder


@cache
def _generated(place: Place) -> tuple[Mapping[str, float | None], GenerateResult]:
    engine = _engine(place)
    found = measure_rollout(engine, sizes_at(place).speed)
    engine.sleep()
    return found


@cache
def _learnt(place: Place) -> Mapping[str, float | None]:
    work = sizes_at(place).speed
    _, result = _generated(place)
    rate = matrix_rate(work)
    trainer, folder = _trainer(place)
    figures, seconds = measure_training(trainer, folder, work, result)
    shape = shape_of(spec_of(work), work.vocabulary)
    achieved = training_flops(shape, work) / seconds
    card = card_here()
    return figures | {
        "train_mfu": None if card is None else achieved / card[1],
        "train_gemm_fraction": achieved / rate,
        "gemm_tflop_s_bf16": rate / 1e12,
        "card_tflop_s_bf16": None if card is None else card[1] / 1e12,
        "parameters": float(shape.parameters),
    }


def training_flops(shape: ModelShape, work: Work) -> float:
    """Counts the update's operations: forward, two per parameter and four per attended number; backward, twice that
    (arXiv 2001.08361); the head counts only for predicted tokens.
    """
    body = 2.0 * (shape.parameters - (1 if shape.tied else 2) * shape.embedding_parameters)
    head = 2.0 * shape.embedding_parameters
    responses = work.prompts * work.samples * (work.response - 1)
    attended = work.prompts * work.prompt * work.prompt / 2 + responses * (work.prompt + work.response / 2)
    return 3.0 * (work.rows * body + work.counted * head + 4.0 * shape.layers * shape.query_width * attended)


def seconds_of(call: Callable[[], Any]) -> float:
    """Returns the wall time of a call, including the work that it has queued on a GPU."""
    _settle()
    began = time.perf_counter()
    call()
    _settle()
    return time.perf_counter() - began


def measure_rollout(engine: TorchRolloutEngine, work: Work) -> tuple[Figures, GenerateResult]:
    """Answers the decode batch round by round; returns the figures and the last answers."""
    results = [engine.generate(request_of(work, 1))]
    seconds = list[float]()
    _forget_peak()
    for _ in range(ROUNDS):
        seconds.append(seconds_of(lambda: results.append(engine.generate(request_of(work, 1)))))
    peak = _peak_gib()
    return {"rollout_tokens_per_s": work.counted / min(seconds), "rollout_peak_gib": peak}, results[-1]


def measure_training(
    trainer: TorchTrainEngine, folder: Path, work: Work, result: GenerateResult
) -> tuple[Figures, float]:
    """Learns round by round from the same answers; returns the figures and the seconds of the best update."""
    seconds = []
    for iteration in range(1, ROUNDS + 2):
        task = seal_responses(folder, iteration, request_of(work, 1), result)
        _forget_peak()
        seconds.append(seconds_of(partial(_learn, trainer, task)))
    # The first update allocates the optimizer's moments.
    best = min(seconds[1:])
    return {"train_tokens_per_s": work.rows / best, "train_peak_gib": _peak_gib()}, best


def _learn(trainer: TorchTrainEngine, task: BatchTask) -> None:
    prepared = trainer.prepare(task)
    assert prepared is not None
    trainer.learn(task, prepared)


def measure_moves(trainer: TorchTrainEngine, engine: TorchRolloutEngine) -> Figures:
    """Measures the transfer of weights to the rollout engine, and of the trainer's tensors to the host and back."""
    sent = sum(array.nbytes for array in dict(trainer.stream_weights()).values())
    storages = [each.untyped_storage() for each in trainer.policy.memory().lasting]  # weights are views of one buffer
    held = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    syncs = [seconds_of(lambda: engine.update_weights(dict(trainer.stream_weights()), 0)) for _ in range(ROUNDS)]
    away, back = zip(*((seconds_of(trainer.offload), seconds_of(trainer.reload)) for _ in range(ROUNDS)), strict=True)
    moved = {"sync_gb_s": sent / min(syncs), "offload_gb_s": held / min(away), "reload_gb_s": held / min(back)}
    return {name: rate / 1e9 for name, rate in moved.items()}


def matrix_rate(work: Work) -> float:
    """Returns the operations per second of large bfloat16 matrix products, the best of ten."""
    one, other = (torch.randn(work.gemm, work.gemm, device=own_device()).bfloat16() for _ in range(2))
    return max(2.0 * work.gemm**3 / seconds_of(lambda: torch.mm(one, other)) for _ in range(GEMM_ROUNDS))


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak_gib() -> float | None:
    """Returns the peak memory in GiB; None if the device is not a GPU."""
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None
