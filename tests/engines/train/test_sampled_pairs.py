"""DPO on sampled pairs: a plain loop over a transformers model takes the same steps, and so does every engine and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import BUDGET, LAYOUTS, Layout
from tests.engines.train.support import (
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    random_task,
    update,
    weights_of,
)
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.run import RunSpec

BETA = 0.2
RATE = 1e-3
TEMPERATURE = 0.8
ITERATIONS = 3
NAMES = ("torch-2", "fsdp2-2", "megatron-tp2-pp1-dp1-qwen2", "megatron-tp1-pp2-dp1-qwen2")
OTHERS = [param for param in LAYOUTS if param.id in NAMES]


def spec_of(engine: dict[str, Any], kind: str = "dpo") -> RunSpec:
    optimizer = {"learning_rate": RATE, "epsilon": 1e-4, "max_grad_norm": 1e9}
    return make_spec(
        objective={"kind": kind, "beta": BETA, "pairs": "sampled"}, trainer={"engine": engine, "optimizer": optimizer}
    )


def log_prob(model: Any, batch: ExperienceBatch, sample: int) -> torch.Tensor:
    """Returns the log-probability of a response's counted tokens at the sampling temperature."""
    prompt = batch.prompt_tokens[slice(*batch.prompt_offsets[sample : sample + 2])]
    response = batch.response_tokens[slice(*batch.response_offsets[sample : sample + 2])]
    counts = batch.loss_mask[slice(*batch.response_offsets[sample : sample + 2])]
    tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)[None]
    logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].double() / TEMPERATURE
    found = torch.log_softmax(logits, -1).gather(-1, tokens[0, len(prompt) :, None])[:, 0]
    return found[torch.from_numpy(counts.copy())].sum()


def plain_step(model: Any, reference: Any, optimizer: Any, batch: ExperienceBatch) -> float:
    """Takes a step on the best and the worst response to each prompt; returns the loss."""
    losses = []
    for ordinal in np.unique(batch.ordinals):
        group = np.flatnonzero(batch.ordinals == ordinal)
        best = group[np.argmax(batch.rewards[group])]
        worst = group[np.argmin(batch.rewards[group])]
        if batch.rewards[best] > batch.rewards[worst]:
            with torch.no_grad():
                kept = log_prob(reference, batch, best) - log_prob(reference, batch, worst)
            losses.append(-logsigmoid(BETA * (log_prob(model, batch, best) - log_prob(model, batch, worst) - kept)))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], dict[str, np.ndarray[Any, Any]]]:
    """Returns a model's folder, and the losses and the final weights of a plain loop."""
    folder = tmp_path_factory.mktemp("plain")
    path = make_model_folder(folder / "model")
    model, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0)
    batches = [batch_of(folder, random_task(folder, iteration)) for iteration in range(1, ITERATIONS + 1)]
    losses = [plain_step(model, reference, optimizer, batch) for batch in batches]
    return path, losses, {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def test_a_plain_loop_takes_the_same_steps(
    expected: tuple[Path, list[float], dict[str, np.ndarray[Any, Any]]], tmp_path: Path
) -> None:
    model, losses, weights = expected
    engine = make_engine(spec_of({"kind": "torch", "ranks": 1, "micro_batch_tokens": BUDGET}), tmp_path, model)
    receipts = [update(engine, random_task(tmp_path, iteration)) for iteration in range(1, ITERATIONS + 1)]
    assert [receipt.metrics["loss"] for receipt in receipts] == pytest.approx(losses, rel=1e-5)
    assert receipts[0].metrics["preference/accuracy"] == 0.5
    for name, array in weights_of(engine).items():
        np.testing.assert_allclose(array, weights[name], atol=2e-6)


@pytest.mark.verify
@pytest.mark.parametrize("layout", OTHERS)
def test_every_layout_takes_the_same_steps(
    layout: Layout, expected: tuple[Path, list[float], dict[str, np.ndarray[Any, Any]]], tmp_path: Path
) -> None:
    model, losses, weights = expected
    job = Job(spec_of(layout.engine), model, range(1, ITERATIONS + 1))
    results = run_ranks(layout.ranks, [job], tmp_path)
    for rank in results:
        assert [receipt.metrics["loss"] for receipt in rank[0].receipts] == pytest.approx(losses, rel=1e-5)
    for name, array in results[0][0].weights.items():
        np.testing.assert_allclose(array, weights[name], atol=5e-6)
