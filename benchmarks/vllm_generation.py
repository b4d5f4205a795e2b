"""Runs vLLM on the work of `benchmarks.generation`: tokens per second, log-probabilities, loading weights, the exchange.

The exchange is what an engine in a process and an environment of its own costs, against vLLM called directly in the same
environment (`benchmarks.vllm_direct`), in alternating rounds. Consumes nothing. Runs in a separate process, whose environment
its engines inherit; one thread. Part of `benchmarks.engines`; alone: `python -m benchmarks.vllm_generation --json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from benchmarks.generation import LONGEST, PROMPT, ROUNDS, Work, equal_work, mixed_work, write_model
from yatt_core.engine_environments import VLLM, find_environment, is_installed
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine, process_settings
from yatt_core.engines.rollout.served.process import process_variables
from yatt_core.engines.rollout.served.protocol import Opening, frame_of
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.protocols.generation import GenerateResult
from yatt_core.spec.sections.accelerated import VllmRollout

KEYS = (
    "vllm_logprob_gap_max", "vllm_sync_ms", "vllm_tokens_per_s_mixed", "vllm_tokens_per_s_bf16", "vllm_exchange_share",
    "vllm_outside_steps_share",
)  # fmt: skip
EXCHANGE_ROUNDS = 4
"""Of both sides, one after the other, each in a process that has answered the request once before."""
ROOT = Path(__file__).resolve().parent.parent


def measure_vllm(folder: Path) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures; None if vLLM is not installed. folder: written by `generation.write_model`."""
    if not is_installed(VLLM, None):
        return dict.fromkeys(KEYS), {}
    command = [sys.executable, "-m", "benchmarks.vllm_generation", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, float | None] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures, {}


def measure_torch_sync(folder: Path) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Measures the milliseconds of loading new weights into the torch engine."""
    engine = TorchRolloutEngine(
        model_path=str(folder),
        dtype="float32",
        max_prompt_tokens=PROMPT,
        max_new_tokens=LONGEST,
        inputs_folder=folder,
        folder_version=0,
    )
    return {"torch_sync_ms": _sync_ms(engine, folder)}, {}


def _measured(folder: Path) -> dict[str, float]:
    mixed = mixed_work()
    equal = equal_work()
    figures = dict[str, float]()
    for dtype, work, key in (("float32", mixed, "mixed"), ("bfloat16", equal, "bf16")):
        spec = VllmRollout(instances=1, dtype=dtype, max_num_seqs=128)
        engine = _opened(folder, spec)
        figures[f"vllm_tokens_per_s_{key}"] = work.tokens / _least_seconds(partial(engine.generate, work.request))
        if dtype == "float32":
            figures["vllm_logprob_gap_max"] = _gap(folder, work, engine.generate(work.request))
            figures["vllm_sync_ms"] = _sync_ms(engine, folder)
        engine.close()
    return figures | _exchange(folder, mixed)


def _opened(folder: Path, spec: VllmRollout) -> ServedRolloutEngine:
    return ServedRolloutEngine(
        launch=VLLM_LAUNCH,
        model_path=str(folder),
        spec=spec,
        max_prompt_tokens=PROMPT,
        max_new_tokens=LONGEST,
        folder_version=0,
    )


def _exchange(folder: Path, work: Work) -> dict[str, float]:
    """Returns which share of a decode's time the exchange takes, by the difference to direct calls, and by the engine's clock.

    The second counts all that happens between an engine's steps, the requests' submission included.
    """
    spec = VllmRollout(instances=1, dtype="float32", max_num_seqs=128)
    opening = Opening(str(folder), process_settings(spec), PROMPT + LONGEST, 0)
    found = find_environment(VLLM, None)
    variables = process_variables(found, VLLM_LAUNCH.variables(found.processors, "", False)) | {"PYTHONPATH": str(ROOT)}
    command = [str(found.python), "-m", "benchmarks.vllm_direct"]
    direct = float("inf")
    served = float("inf")
    outside = 1.0
    with tempfile.NamedTemporaryFile(suffix=".frame") as file:
        file.write(frame_of([opening, work.request, ROUNDS]))
        file.flush()
        for _ in range(EXCHANGE_ROUNDS):
            done = subprocess.run([*command, file.name], stdout=subprocess.PIPE, text=True, check=True, env=variables)
            direct = min(direct, json.loads(done.stdout.strip().splitlines()[-1])["seconds"])
            engine = _opened(folder, spec)
            for _ in range(ROUNDS):
                engine.take_work()
                started = time.perf_counter()
                engine.generate(work.request)
                seconds = time.perf_counter() - started
                served = min(served, seconds)
                outside = min(outside, 1.0 - engine.take_work().seconds / seconds)
            engine.close()
    return {
        "vllm_direct_s": direct,
        "vllm_served_s": served,
        "vllm_exchange_share": served / direct - 1.0,
        "vllm_outside_steps_share": outside,
    }


def _least_seconds(run: Any) -> float:
    least = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - started)
    return least


def _gap(folder: Path, work: Work, result: GenerateResult) -> float:
    """Returns the largest difference from transformers' log-probabilities of the same tokens."""
    model: Any = load_causal_lm(str(folder), "float32")
    largest = 0.0
    end = 0
    for prompt, length in zip(work.prompts, result.lengths.tolist(), strict=True):
        tokens = result.tokens[end : end + length]
        log_probs = result.log_probs[end : end + length]
        end += length
        with torch.no_grad():
            ids = torch.from_numpy(np.concatenate([prompt, tokens]).astype(np.int64))[None]
            distribution = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1], -1)
        wanted = distribution.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
        largest = max(largest, float(np.abs(wanted - log_probs).max()))
    return largest


def _sync_ms(engine: RolloutEngine, folder: Path) -> float:
    tensors = load_file(folder / "model.safetensors")
    versions = iter(range(1, ROUNDS + 1))
    return 1000 * _least_seconds(lambda: engine.update_weights(tensors, next(versions)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        os.environ.setdefault("TMPDIR", name)
        if sys.argv[1:] == ["--json"]:
            os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            write_model(Path(name) / "model")
            print(json.dumps(_exchange(Path(name) / "model", mixed_work())))
        else:
            print(json.dumps(_measured(Path(sys.argv[1]))))
