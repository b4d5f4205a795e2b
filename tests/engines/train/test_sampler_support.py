"""The trainer's probabilities over the support that the sampler recorded, against an independent computation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import _model_folder
from tests.engines.train.support import (
    MAX_NEW_TOKENS,
    VOCABULARY,
    batch_of,
    make_engine,
    make_spec,
    random_rows,
    random_task,
    update,
    write_shards,
)
from tests.matrix import examples
from tests.needs import NEEDS_MEGATRON
from tests.spec.trees import VIRTUAL, mistakes
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward, assemble
from yatt_core.engines.train.torch.dense_head import Head, backward_tokens, measure_tokens
from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.run import RunSpec
from yatt_core.wire.support import Support

TEMPERATURE = 0.8
CUT: dict[str, Any] = {"top_k": 6, "top_p": 0.7}
ROLLOUT = {"samples_per_prompt": 4, "max_new_tokens": MAX_NEW_TOKENS, "temperature": TEMPERATURE}
CLIP_COV = {"kind": "clip_cov"}
"""Makes `prepare` compute old log-probabilities although there is one step only."""


def replaying_spec(engine: dict[str, Any] | None = None, support: str = "replay", **algorithm: Any) -> RunSpec:
    trainer = {"engine": engine or {"kind": "torch", "ranks": 1}, "optimizer": {"learning_rate": 1e-2}}
    return make_spec(rollout={**ROLLOUT, **CUT}, algorithm={"sampler_support": support, **algorithm}, trainer=trainer)


def sampled(model: Path, prompts: list[list[int]], iteration: int) -> GenerateResult:
    engine = TorchRolloutEngine(str(model), "float32", 64, MAX_NEW_TOKENS, model)
    engine.update_weights(load_file(model / "model.safetensors"), 0)
    seeds = np.random.default_rng(iteration).integers(0, 2**60, (len(prompts), 4)).astype(np.uint64)
    tokens = [np.array(prompt, np.int32) for prompt in prompts]
    return engine.generate(
        GenerateRequest(tokens, seeds, MAX_NEW_TOKENS, (1,), 0, TEMPERATURE, record_support=True, **CUT)
    )


def sampled_task(model: Path, folder: Path, iteration: int, vocabulary: int = VOCABULARY) -> BatchTask:
    """Returns a task whose responses the torch engine has sampled from the model's truncated distribution."""
    rows = random_rows(iteration, samples=4, vocabulary=vocabulary)
    result = sampled(model, [row["prompt_tokens"] for row in rows[::4]], iteration)
    ends = np.cumsum(result.lengths)
    support = result.support
    assert support is not None
    for row, end, length in zip(rows, ends.tolist(), result.lengths.tolist(), strict=True):
        own = slice(end - length, end)
        row |= {
            "response_tokens": result.tokens[own].tolist(),
            "log_probs_sampler": result.log_probs[own].tolist(),
            "loss_mask": [place % 5 != 3 for place in range(length)],
            "support_tokens": support.at(own).tokens.tolist(),
            "support_sizes": support.at(own).sizes.tolist(),
        }
    return write_shards(folder, iteration, rows)


ENGINES = [
    pytest.param(1, {"kind": "torch"}, "qwen2", id="torch"),
    pytest.param(1, {"kind": "torch", "kernels": "general", "packed": True}, "qwen2", id="torch-general"),
    pytest.param(1, {"kind": "fsdp2", "dtype": "float32"}, "qwen2", id="fsdp2-1"),
    pytest.param(2, {"kind": "fsdp2", "dtype": "float32"}, "qwen2", id="fsdp2-2", marks=pytest.mark.verify),
    *(
        pytest.param(
            tensors * stages,
            {
                "kind": "megatron",
                "dtype": "float32",
                "tensor_model_parallel_size": tensors,
                "pipeline_model_parallel_size": stages,
                "data_parallel_size": 1,
            },
            "llama",
            id=f"megatron-tp{tensors}-pp{stages}",
            marks=[NEEDS_MEGATRON, pytest.mark.verify],
        )
        for tensors, stages in ((2, 1), (1, 2))
    ),
]


@pytest.mark.parametrize(("ranks", "engine", "family"), ENGINES)
def test_ratios_are_one_at_equal_weights(ranks: int, engine: dict[str, Any], family: str, tmp_path: Path) -> None:
    """Both the ratio to the old policy and the difference to the sampler vanish; without the support, the latter does not."""
    model = _model_folder(tmp_path / "model", family)
    ranked = engine if engine["kind"] == "megatron" else {**engine, "ranks": ranks}

    make_task = partial(sampled_task, model)
    kl = {"coefficient": 0.1}
    specs = [
        replaying_spec(ranked, entropy=CLIP_COV, kl=kl),
        replaying_spec(ranked, support="full"),
        replaying_spec(ranked, mini_batches=2, kl=kl, entropy={"kind": "bonus", "coefficient": 0.01}),
    ]
    jobs = [Job(spec, model, (1,), make_task=make_task) for spec in specs]
    replayed, full, several = (found.receipts[0].metrics for found in run_ranks(ranks, jobs, tmp_path)[0])
    assert replayed["tokens"] > 60
    assert replayed["ratio_max"] == pytest.approx(1.0, abs=2e-6)
    assert replayed["ratio_min"] == pytest.approx(1.0, abs=2e-6)
    assert replayed["train_rollout_logprob_diff_max"] < 2e-5
    assert abs(replayed["kl"]) < 1e-9
    assert full["train_rollout_logprob_diff_mean"] > 0.1
    assert np.isfinite(list(several.values())).all() and several["grad_norm"] > 0.0
    plain = make_engine(
        replaying_spec(mini_batches=2, kl=kl, entropy={"kind": "bonus", "coefficient": 0.01}), tmp_path / "one", model
    )
    expected = update(plain, make_task(tmp_path / "one", 1)).metrics
    assert several == pytest.approx(expected, rel=1e-4, abs=1e-6)


def excluded_logits(model: Any, batch: ExperienceBatch, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes a sample's log-probabilities and entropies over its supports, token by token."""
    assert batch.support is not None
    prompt = batch.prompt_tokens[batch.prompt_offsets[index] : batch.prompt_offsets[index + 1]]
    start, stop = batch.response_offsets[index : index + 2]
    response = batch.response_tokens[start:stop]
    whole = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
    logits = model(input_ids=whole).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    found = []
    entropies = []
    for place in range(stop - start):
        if not batch.loss_mask[start + place]:
            continue
        kept = batch.support.at(slice(start + place, start + place + 1)).tokens.tolist()
        row = logits[place, kept]
        log_probs = row - torch.logsumexp(row, 0)
        found.append(log_probs[kept.index(int(response[place]))])
        entropies.append(-(log_probs.exp() * log_probs).sum())
    return torch.stack(found), torch.stack(entropies)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), packed=st.booleans(), rows=st.integers(1, 5))
def test_values_and_gradients_equal_a_computation_over_the_support_alone(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, packed: bool, rows: int
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    batch = batch_of(folder, sampled_task(model_folder, folder, seed))
    chosen = [
        index for index in range(rows) if batch.loss_mask[slice(*batch.response_offsets[index : index + 2])].any()
    ]
    mean = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64).eval()
    model = load_causal_lm(str(model_folder), "float32")
    micro_batch = assemble(batch, np.array(chosen), packed)
    noise = torch.randn(len(micro_batch.positions), generator=torch.Generator().manual_seed(seed))

    def loss(part: MicroBatch, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        return (noise * log_probs).sum() + 0.3 * entropies.sum()

    forward = PolicyForward(model, TEMPERATURE, "float32")
    (scores,) = forward.score([micro_batch])
    forward.backward([micro_batch], loss, "loss")
    parts = [excluded_logits(mean, batch, index) for index in chosen]
    expected = torch.cat([part for part, _ in parts])
    ((noise.double() * expected).sum() + 0.3 * torch.cat([part for _, part in parts]).sum()).backward()
    np.testing.assert_allclose(scores, expected.detach().numpy(), atol=5e-6)
    wanted = dict(mean.named_parameters())
    for name, parameter in model.named_parameters():
        assert wanted[name].grad is not None and parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, wanted[name].grad, rtol=2e-5, atol=3e-5, err_msg=name)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 9), temperature=st.sampled_from([1.0, 0.6]))
def test_the_dense_heads_gradient_is_the_finite_difference(seed: int, tokens: int, temperature: float) -> None:
    noise = np.random.default_rng(seed)
    states = noise.normal(size=(tokens, 5))
    weight = noise.normal(size=(13, 5))
    targets = noise.integers(0, 13, tokens)
    slopes = noise.normal(size=tokens)
    bonuses = noise.normal(size=tokens)
    kept = [np.union1d(noise.integers(0, 13, noise.integers(0, 6)), [target]) for target in targets]
    support = Support(np.concatenate(kept).astype(np.int32), np.array([len(one) for one in kept], np.int32))

    def plain(states: Any, weight: Any) -> float:
        total = 0.0
        for token, own in enumerate(kept):
            logits = weight[own] @ states[token] / temperature
            log_probs = logits - np.log(np.exp(logits).sum())
            total += slopes[token] * log_probs[list(own).index(targets[token])]
            total -= bonuses[token] * (np.exp(log_probs) * log_probs).sum()
        return total

    def differences(of: Any, value: Any, step: float = 1e-5) -> Any:
        found = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            high = value.copy()
            low = value.copy()
            high[place] += step
            low[place] -= step
            found[place] = (of(high) - of(low)) / (2 * step)
        return found

    def loss(chunk: slice, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
        weights = torch.from_numpy(slopes)[chunk], torch.from_numpy(bonuses)[chunk]
        return (weights[0] * log_probs).sum() + (weights[1] * entropies).sum()

    head = Head(torch.tensor(weight, dtype=torch.float32), temperature, entropies=True)
    given_states = torch.tensor(states, dtype=torch.float32)
    of_weight = torch.zeros_like(head.weight)
    of_states = backward_tokens(head, given_states, torch.from_numpy(targets), loss, of_weight, support)
    log_probs, entropies = measure_tokens(head, given_states, torch.from_numpy(targets), support)
    value = float((log_probs.numpy() * slopes).sum() + (entropies.numpy() * bonuses).sum())
    assert value == pytest.approx(plain(states, weight), abs=2e-5)
    np.testing.assert_allclose(of_states, differences(lambda v: plain(v, weight), states), atol=3e-5)
    np.testing.assert_allclose(of_weight, differences(lambda v: plain(states, v), weight), atol=3e-5)
    outside = np.setdiff1d(np.arange(13), np.concatenate(kept))
    assert not of_weight[outside].any(), "tokens that could not be drawn get no gradient"


def test_samples_taken_from_a_batch_keep_their_supports(tmp_path: Path, model_folder: Path) -> None:
    batch = batch_of(tmp_path, sampled_task(model_folder, tmp_path, 1))
    part = batch.take(np.array([5, 2]))
    assert batch.support is not None and part.support is not None
    expected = [batch.take(np.array([index])).support for index in (5, 2)]
    joined = Support.joined([one for one in expected if one is not None])
    assert part.support.tokens.tolist() == joined.tokens.tolist()
    assert part.support.sizes.tolist() == joined.sizes.tolist()
    assert part.support.contains(part.response_tokens).all()


def test_experience_that_lacks_a_sampled_token_or_all_supports_is_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(replaying_spec(), tmp_path, model_folder)
    with pytest.raises(DataError, match=r"support_tokens.*algorithm\.sampler_support: replay"):
        engine.prepare(random_task(tmp_path, 1))
    row = random_rows(1)[0] | {"response_tokens": [3, 4], "log_probs_sampler": [0.0, 0.0], "loss_mask": [True, True]}
    with pytest.raises(DataError, match="lacks the sampled token at prompt ordinal"):
        write_shards(tmp_path, 2, [{**row, "support_tokens": [3, 5], "support_sizes": [1, 1]}], shards=1)
    with pytest.raises(DataError, match="does not fit support_sizes"):
        write_shards(tmp_path, 3, [{**row, "support_tokens": [3, 4, 5], "support_sizes": [1, 1]}], shards=1)


def test_a_spec_whose_support_cannot_be_replayed_is_refused() -> None:
    def lines(**keys: Any) -> list[str]:
        return mistakes(algorithm={"sampler_support": "replay"}, **keys)

    (line,) = lines(rollout__top_p=0.9)
    assert line.startswith("algorithm.sampler_support: ") and "rollout.top_k" in line
    (line,) = lines(rollout__top_k=5, rollout__repetition_penalty=1.2)
    assert "repetition_penalty" in line and "1.2" in line
    (line,) = mistakes(algorithm={"sampler_support": "replay"}, **VIRTUAL)
    assert line.startswith("algorithm.sampler_support: ") and "virtual" in line
