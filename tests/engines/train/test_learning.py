"""The torch trainer learns on its own policy's responses: from rewards with a critic, or from a teacher alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.train.letters import letters_engine, letters_spec
from tests.engines.train.support import ONLY_FILE, update, write_shards
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.spec.run import RunSpec

pytestmark = pytest.mark.verify
PROMPTS = 24
SAMPLES = 4
ITERATIONS = 28
CRITIC = {"optimizer": {"learning_rate": 3e-3}, "warmup_iterations": 2}
PPO = {"advantage": {"kind": "gae"}, "epochs": 2, "mini_batches": 4, "critic": CRITIC}


def spec_with(folder: Path, algorithm: dict[str, Any], sft_steps: int) -> RunSpec:
    plain = letters_spec(folder, max_steps=sft_steps, stop_accuracy=0.4, probe_every=5).model_dump(mode="json")
    optimizer = {**plain["trainer"]["optimizer"], "learning_rate": 3e-3}
    return RunSpec.model_validate(
        {**plain, "algorithm": algorithm, "trainer": {**plain["trainer"], "optimizer": optimizer}}
    )


def trained(
    spec: RunSpec, folder: Path, rewarded: bool = True
) -> tuple[TorchTrainEngine, list[float], list[dict[str, float]]]:
    """Returns the engine after all iterations, and each iteration's fraction of correct answers and metrics."""
    engine = letters_engine(spec, folder)
    engine.connect(0, 1, "")
    engine.initialise()
    engine.sft()
    inputs = Inputs.open(folder / "inputs", spec)
    codec = open_codec(spec, engine.policy.context.model_path)
    prompts = inputs.demonstrations(160)
    right = []
    metrics = []
    for iteration in range(1, ITERATIONS + 1):
        drawn = [prompts[(iteration * PROMPTS + place) % len(prompts)] for place in range(PROMPTS)]
        seeds = np.random.default_rng(iteration).integers(0, 2**63, (PROMPTS, SAMPLES), dtype=np.uint64)
        questions = [encode_question(prompt, codec) for prompt in drawn]
        runner = open_runner(engine.policy.probe_model(), None)
        found = decode(runner, GenerateRequest(questions, seeds, 3, codec.stop_tokens, iteration - 1))
        ends = np.cumsum(found.lengths)
        rows = []
        for row, (length, end) in enumerate(zip(found.lengths.tolist(), ends.tolist(), strict=True)):
            prompt = drawn[row // SAMPLES]
            own = slice(end - length, end)
            tokens = found.tokens[own]
            correct = codec.decode(tokens).strip() == prompt.answer
            rows.append(
                {
                    "prompt_ordinal": PROMPTS * iteration + row // SAMPLES,
                    "sample": row % SAMPLES,
                    "prompt_id": prompt.prompt_id,
                    "source": 0,
                    "prompt": "",
                    "prompt_tokens": questions[row // SAMPLES].tolist(),
                    "response": "",
                    "response_tokens": tokens.tolist(),
                    "log_probs_sampler": found.log_probs[own].tolist(),
                    "loss_mask": [True] * length,
                    "finish": "stop",
                    "truncated": False,
                    "weight_version": iteration - 1,
                    "reward": float(correct and rewarded),
                    "correct": correct,
                    "reward_error": None,
                    "reward/exact": float(correct),
                }
            )
        right.append(float(np.mean([row["correct"] for row in rows])))
        metrics.append(update(engine, write_shards(folder, iteration, rows)).metrics)
    return engine, right, metrics


def test_a_policy_learns_with_a_critic_and_a_student_learns_from_that_policy(tmp_path: Path) -> None:
    engine, right, metrics = trained(spec_with(tmp_path / "a", PPO, 100), tmp_path / "a")
    assert np.mean(right[-3:]) > right[0] + 0.3, right
    assert ["policy_loss" in found for found in metrics[:3]] == [False, False, True]

    teacher = shutil.copytree(engine.policy.context.model_path, tmp_path / "teacher")
    (tmp_path / "checkpoint").mkdir()
    engine.freeze_state()(tmp_path / "checkpoint")
    shutil.copyfile(tmp_path / "checkpoint" / "weights" / ONLY_FILE, teacher / "model.safetensors")
    distillation = {"teachers": [{"model": {"kind": "folder", "path": str(teacher)}}]}
    algorithm = {"epochs": 2, "mini_batches": 4, "distillation": distillation}
    _, taught, metrics = trained(spec_with(tmp_path / "a", algorithm, 100), tmp_path / "b", rewarded=False)
    assert metrics[-1]["distillation_kl"] < 0.5 * metrics[0]["distillation_kl"]
    assert np.mean(taught[-3:]) > taught[0] + 0.4, taught
