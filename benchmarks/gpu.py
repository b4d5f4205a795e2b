"""How fast are the torch engines on a GPU, at a billion parameters in bfloat16?

Consumes a GPU; without one it reports this and exits with code 2. A rollout engine generates 8 responses of 512
tokens for each of 64 prompts of 256 tokens. A trainer learns from them, sends its weights back, and offloads and
reloads its tensors: the product's own engines in one process, without orchestration. The figures are the best of all
rounds:

- `rollout_tokens_per_s`: generated tokens; `train_tokens_per_s`: rows that the trainer computes, where a group's
  prompt counts once;
- `train_mfu`: operations of those rows' forward and backward passes, divided by the data sheet's maximum in that
  time; None for a GPU that has no card in `yatt plan`; `train_gemm_fraction`: the same, relative to the rate of large
  products in this run;
- `sync_gb_s`: float32 weights from the trainer's memory to the engine's; `offload_gb_s`, `reload_gb_s`: the trainer's
  tensors;
- `memory_sync_gb_s`: bfloat16 weights, the direct way, from a trainer's process to an engine's on the same GPU, through the
  trainer's memory; `nccl_sync_gb_s`: to an engine's on a second GPU, None if there is none;
- `rollout_peak_gib`, `train_peak_gib`: peak memory of tensors, as counted by torch; `parameters`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.experience import seal_responses
from benchmarks.gpu_transfers import transfers_between
from yatt_core.engines.device import own_device
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import ExitCode
from yatt_core.models.model_folder import make_model
from yatt_core.planning.cluster import card_of, read_cards
from yatt_core.planning.shape import ModelShape, shape_of
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
ROUNDS = 3
GEMM_ROUNDS = 10
GIB = 1 << 30
NO_GPU = (
    "benchmarks.gpu: torch sees no GPU here (torch.cuda.is_available() is false), so there is nothing to measure; `yatt doctor` "
    "says what is missing"
)

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Work:
    """A model, a decode batch, and a micro-batch. prompt, response: tokens of each. gemm: a matrix's side."""

    hidden: int = 2048
    layers: int = 18
    heads: int = 16
    key_value_heads: int = 8
    intermediate: int = 6144
    vocabulary: int = 65_536
    prompts: int = 64
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


def spec_of(work: Work) -> RunSpec:
    """Returns the spec of a run with these engines."""
    tree: dict[str, Any] = {
        "name": "gpu", "seed": SEED, "iterations": 1000, "exact": False,
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
            "engine": {"kind": "torch", "instances": 1, "dtype": "bfloat16"},
            "samples_per_prompt": work.samples, "max_new_tokens": work.response,
        },
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {},
        "trainer": {
            "engine": {
                "kind": "torch", "ranks": 1, "dtype": "bfloat16", "micro_batch_tokens": work.micro_batch_tokens,
            },
            "optimizer": {"learning_rate": 1e-6},
        },
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.gpu")


def request_of(work: Work, iteration: int) -> GenerateRequest:
    """Draws random prompts; no response ends early."""
    noise = np.random.default_rng([SEED, iteration])
    return GenerateRequest(
        prompts=list(noise.integers(0, work.vocabulary, (work.prompts, work.prompt)).astype(np.int32)),
        seeds=noise.integers(0, 2**63, (work.prompts, work.samples)).astype(np.uint64),
        max_new_tokens=work.response,
        stop_tokens=(),
        weight_version=0,
    )


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
    started = time.perf_counter()
    call()
    _settle()
    return time.perf_counter() - started


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


def measure_transfers(work: Work, ways: Mapping[str, Sequence[str]]) -> Figures:
    """Measures direct transfers between processes. ways: devices of trainer and engine by figure; None if not there."""
    figures = Figures()
    spec = spec_of(work)
    assert isinstance(spec.model, ModelFromConfig)
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        model = Path(name) / "model"
        model.mkdir()
        make_model(spec.model, work.vocabulary, SEED, model)
        for figure, devices in ways.items():
            progress(f"transfers: {figure}")
            found = (
                transfers_between(devices=devices, folder=Path(name), model=model, spec=spec, rounds=ROUNDS)
                if devices
                else ()
            )
            best = min((max(each) for each in zip(*(one.seconds for one in found), strict=True)), default=None)
            figures[figure] = None if best is None else found[0].nbytes / best / 1e9
    return figures


def matrix_rate(work: Work) -> float:
    """Returns the operations per second of large bfloat16 matrix products, the best of ten."""
    one, other = (torch.randn(work.gemm, work.gemm, device=own_device()).bfloat16() for _ in range(2))
    return max(2.0 * work.gemm**3 / seconds_of(lambda: torch.mm(one, other)) for _ in range(GEMM_ROUNDS))


def measure(work: Work, card_flops: float | None) -> Report:
    """Runs the engines. card_flops: the GPU's data sheet rate in bfloat16; None if `yatt plan` has no card for it."""
    load = [load_average()]
    spec = spec_of(work)
    shape = shape_of(spec, work.vocabulary)
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        assert isinstance(spec.model, ModelFromConfig)
        progress(f"{shape.parameters / 1e9:.2f} billion parameters")
        make_model(spec.model, work.vocabulary, SEED, model)
        rate = matrix_rate(work)
        progress("generating")
        engine = TorchRolloutEngine(
            model_path=str(model),
            dtype="bfloat16",
            max_prompt_tokens=work.prompt,
            max_new_tokens=work.response,
            inputs_folder=model,
            folder_version=0,
        )
        figures, result = measure_rollout(engine, work)
        engine.sleep()
        progress("learning")
        trainer = TorchTrainEngine(spec, RankContext(folder, folder / "inputs", str(model), 0))
        trainer.connect(0, 1, "")
        trainer.initialise()
        trained, seconds = measure_training(trainer, folder, work, result)
        progress("moving weights")
        figures |= trained | measure_moves(trainer, engine)
    achieved = training_flops(shape, work) / seconds
    figures["train_mfu"] = None if card_flops is None else achieved / card_flops
    figures |= {"train_gemm_fraction": achieved / rate, "parameters": float(shape.parameters)}
    baselines = {"gemm_tflop_s_bf16": rate / 1e12, "card_tflop_s_bf16": card_flops and card_flops / 1e12}
    return Report(name="gpu", figures=figures, seeds=[SEED], load=[*load, load_average()], baselines=baselines)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak_gib() -> float | None:
    """Returns the peak memory in GiB; None if the device is not a GPU."""
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None


def main() -> None:
    """Runs the benchmark."""
    arguments = argument_parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        progress(NO_GPU)
        sys.exit(ExitCode.CONFIGURATION)
    cards = read_cards()
    device = torch.cuda.get_device_properties(0)
    card = card_of(device.name, device.total_memory, cards)
    report = measure(Work(), None if card is None else cards[card].flops)
    second = ("0", "1") if torch.cuda.device_count() > 1 else ()
    moved = measure_transfers(Work(), {"memory_sync_gb_s": ("0", "0"), "nccl_sync_gb_s": second})
    print_report(replace(report, figures={**report.figures, **moved}), arguments.json)


if __name__ == "__main__":
    main()
