"""How close is a GRPO step to the time of its matrix products alone? One thread, without orchestration.

Consumes nothing. A model of 5 million parameters generates 8 responses of 64 tokens for each of 8 prompts of 32
tokens and learns from them, with the product's own rollout engine and trainer: generation, preparation, the update
and the transfer of the weights back; sealing the experience in between does not count. The ratio divides CPU seconds,
the minimum of the rounds, by the time of 154 GFLOP at the rate of large matrix products of that dtype in the same
run. Also measures the same step with the transformers module and, if `make peers` has installed it, with TRL, and compares
the custom kernels' gradients with transformers' autograd.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peer_environment
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.experience import seal_responses
from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.way import way_of_processor
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.models.model_folder import make_model
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
VOCABULARY = 8192
PROMPTS = 8
SAMPLES = 8
PROMPT = 32
RESPONSE = 64
FLOOR_GFLOP = 154.0
"""The step's matrix products: a forward pass to decode, a forward and a backward pass to learn, prompts once per
group.
"""
GEMM_SIZE = 2048
ROUNDS = 10
GENERAL_ROUNDS = 3
TRL_ROUNDS = 3
GROUPS_OF_MICRO_BATCH = 2
PARTS = ("generate", "learn", "sync")


def spec_of(dtype: str, kernels: str) -> RunSpec:
    """Returns the spec of the run that takes the step; two groups make a micro-batch."""
    tree: dict[str, Any] = {
        "name": "step", "seed": SEED, "iterations": 1000, "exact": dtype == "float32",
        "model": {
            "kind": "from_config", "hidden_size": 256, "layers": 4, "heads": 4, "key_value_heads": 2,
            "intermediate_size": 704, "max_positions": 256,
        },
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": PROMPTS,
            "logical_shards": 1, "max_prompt_tokens": PROMPT,
        },
        "rollout": {
            "engine": {"kind": "torch", "instances": 1, "dtype": dtype, "kernels": kernels},
            "samples_per_prompt": SAMPLES, "max_new_tokens": RESPONSE,
        },
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {},
        "trainer": {
            "engine": {
                "kind": "torch", "ranks": 1, "dtype": dtype, "kernels": kernels,
                "micro_batch_tokens": GROUPS_OF_MICRO_BATCH * SAMPLES * (PROMPT + RESPONSE),
            },
            "optimizer": {"learning_rate": 1e-4, "max_grad_norm": 1e9},
        },
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.step")


@dataclass
class Stepper:
    """A rollout engine and a trainer that take one step after another. seconds: CPU time of each step's parts."""

    folder: Path
    spec: RunSpec
    seconds: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        model = self.folder / "model"
        model.mkdir()
        assert isinstance(self.spec.model, ModelFromConfig)
        make_model(self.spec.model, VOCABULARY, SEED, model)
        rollout: Any = self.spec.rollout.engine
        self.rollout = TorchRolloutEngine(
            model_path=str(model),
            dtype=rollout.dtype,
            max_prompt_tokens=PROMPT,
            max_new_tokens=RESPONSE,
            inputs_folder=model,
            kernels=rollout.kernels,
        )
        self.trainer = TorchTrainEngine(self.spec, RankContext(self.folder, self.folder / "inputs", str(model), 0))
        self.trainer.connect(0, 1, "")
        self.trainer.initialise()
        self.rollout.update_weights(dict(self.trainer.stream_weights()), 0)

    def take(self) -> None:
        """Takes one step on new prompts and seeds."""
        iteration = self.trainer.version + 1
        request = request_of(iteration)
        parts = dict[str, float]()
        result = _timed(parts, "generate", lambda: self.rollout.generate(request))
        task = seal_responses(self.folder, iteration, request, result)

        def learn() -> None:
            prepared = self.trainer.prepare(task)
            assert prepared is not None
            self.trainer.learn(task, prepared)

        _timed(parts, "learn", learn)
        _timed(parts, "sync", lambda: self.rollout.update_weights(dict(self.trainer.stream_weights()), iteration))
        self.seconds.append(parts)

    def gradients(self) -> torch.Tensor:
        """Returns the gradients of the last step, one parameter after the other in the order of their names."""
        named = self.trainer.policy.optimizer.named(self.trainer.policy.optimizer.gradients)
        return torch.cat([named[name].flatten() for name in sorted(named)])

    @property
    def least(self) -> dict[str, float]:
        """The parts of the step with the least total time."""
        return min(self.seconds, key=lambda parts: sum(parts.values()))


def request_of(iteration: int) -> GenerateRequest:
    """Draws random prompts; no response ends early."""
    noise = np.random.default_rng([SEED, iteration])
    return GenerateRequest(
        prompts=list(noise.integers(0, VOCABULARY, (PROMPTS, PROMPT)).astype(np.int32)),
        seeds=noise.integers(0, 2**63, (PROMPTS, SAMPLES)).astype(np.uint64),
        max_new_tokens=RESPONSE,
        stop_tokens=(),
        weight_version=iteration - 1,
    )


def _timed(parts: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    started = time.process_time()
    result = call()
    parts[name] = time.process_time() - started
    return result


class MatrixRate:
    """The rate of large matrix products in GFLOP per CPU second, the best seen, as the engines compute them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._products = products_of(dtype, torch.device("cpu"))
        noise = torch.Generator().manual_seed(SEED)
        self._one, self._other = (torch.randn(GEMM_SIZE, GEMM_SIZE, generator=noise).to(dtype) for _ in range(2))
        self.best = 0.0

    def measure(self) -> None:
        """Times one more product."""
        started = time.process_time()
        self._products.matmul(self._one, self._other)
        self.best = max(self.best, 2.0 * GEMM_SIZE**3 / 1e9 / (time.process_time() - started))


def trl_step(folder: Path, dtype: str, rounds: int) -> float | None:
    """Returns the CPU seconds of TRL's fastest step on the same prompts; None if `make peers` has not installed it.

    folder: for what TRL needs and says.
    """
    if not peer_environment.is_there():
        return None
    folder.mkdir()
    model = folder / "model"
    model.mkdir()
    from_config = spec_of("float32", "auto").model
    assert isinstance(from_config, ModelFromConfig)
    make_model(from_config, VOCABULARY, SEED, model)
    request = {
        "model": str(model),
        "bfloat16": dtype == "bfloat16",
        "prompts": [prompt.tolist() for prompt in request_of(1).prompts],
        "samples": SAMPLES,
        "response": RESPONSE,
        "micro_batch": GROUPS_OF_MICRO_BATCH * SAMPLES,
        "steps": rounds,
        "seed": SEED,
    }
    program = Path(__file__).with_name("trl_step.py")
    seconds: list[float] = peer_environment.answer_of(program, request, folder)
    return min(seconds)


def trl_ratios(theirs: dict[str, float | None], ours: dict[str, float]) -> dict[str, float | None]:
    """Returns TRL's CPU seconds and, divided by those of our step, its ratios, by kind; None without TRL."""
    figures: dict[str, float | None] = {}
    for key, seconds in theirs.items():
        figures[f"trl_ratio_{key}"] = None if seconds is None else seconds / ours[key]
        figures[f"trl_step_cpu_s_{key}"] = seconds
    return figures


def gradient_gap(fast: Stepper, general: Stepper) -> float:
    """Returns the distance between the two steppers' gradients, relative to the norm of `general`'s.

    Both take their first step with the same samples and weights.
    """
    request = request_of(1)
    result = fast.rollout.generate(request)
    for stepper in (fast, general):
        task = seal_responses(stepper.folder, 1, request, result)
        prepared = stepper.trainer.prepare(task)
        assert prepared is not None
        stepper.trainer.learn(task, prepared)
    ours = fast.gradients().double()
    theirs = general.gradients().double()
    return float((ours - theirs).norm() / theirs.norm())


def measure() -> Report:
    """Takes all steps of one kind before those of the next, since an engine's process uses one dtype.

    Times matrix products in between.
    """
    load = [load_average()]
    torch.set_num_threads(1)
    rates = {"fp32": MatrixRate(torch.float32), "bf16": MatrixRate(torch.bfloat16)}
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        steppers = {
            key: Stepper(Path(name) / key, spec_of(dtype, kernels))
            for key, dtype, kernels in (
                ("bf16", "bfloat16", "auto"), ("fp32", "float32", "auto"), ("general", "float32", "general"),
            )
        }  # fmt: skip
        progress("gradients against transformers' autograd")
        gap = gradient_gap(
            *(Stepper(Path(name) / f"gap-{kernels}", spec_of("float32", kernels)) for kernels in ("auto", "general"))
        )
        for key, stepper in steppers.items():
            rounds = GENERAL_ROUNDS if key == "general" else ROUNDS
            for number in range(rounds):
                progress(f"{key}: step {number + 1} of {rounds}")
                if key in rates:
                    rates[key].measure()
                stepper.take()
        theirs: dict[str, float | None] = {}
        for key, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
            progress(f"TRL: {TRL_ROUNDS} steps in {dtype}")
            theirs[key] = trl_step(Path(name) / f"trl-{key}", dtype, TRL_ROUNDS)
    least = {key: stepper.least for key, stepper in steppers.items()}
    totals = {key: sum(parts.values()) for key, parts in least.items()}
    figures: dict[str, float | None] = {
        f"floor_ratio_{key}": totals[key] * rate.best / FLOOR_GFLOP for key, rate in rates.items()
    }
    figures |= {"general_ratio": totals["general"] / totals["fp32"], "gradient_gap_fp32": gap}
    figures |= {"bf16_over_fp32_seconds": totals["bf16"] / totals["fp32"]} | trl_ratios(theirs, totals)
    figures |= {f"step_cpu_s_{key}": total for key, total in totals.items()}
    figures |= {f"{part}_cpu_s_{key}": least[key][part] for key in least for part in PARTS}
    baselines = {f"gemm_gflop_s_{key}": rate.best for key, rate in rates.items()}
    steps = {key: stepper.seconds for key, stepper in steppers.items()}
    details = {"steps": steps, "bfloat16_products": way_of_processor()}
    return Report(
        name="step", figures=figures, seeds=[SEED], load=[*load, load_average()], baselines=baselines, details=details
    )


def main() -> None:
    """Runs the benchmark."""
    arguments = argument_parser(__doc__).parse_args()
    print_report(measure(), arguments.json)


if __name__ == "__main__":
    main()
