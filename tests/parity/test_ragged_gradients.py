"""A ragged batch's gradient is that of the plain formula, however it is divided over ranks and micro-batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from tests.engines.train.support import MAX_NEW_TOKENS, batch_of, make_model_folder, make_spec, random_task
from tests.matrix import examples
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.engines.train.steps.plan import StepPlan, plan_step
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.models.loading import load_causal_lm
from yatt_core.spec.sections.trainer import AdamWSpec

AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ragged")
    make_model_folder(folder / "model")
    return folder


@pytest.fixture(scope="module")
def batch(folder: Path) -> ExperienceBatch:
    return batch_of(folder, random_task(folder, 1, seed=2))


def columns_for(batch: ExperienceBatch) -> PreparedColumns:
    """Makes up advantages and the log-probabilities of older weights and of a reference."""
    noise = np.random.default_rng(1)
    size = len(batch.response_tokens)
    return PreparedColumns(
        batch.ordinals,
        batch.samples,
        noise.normal(0, 1, len(batch)),
        batch.response_offsets,
        log_probs_old=noise.normal(-3, 0.7, size).astype(np.float32),
        log_probs_ref=noise.normal(-3, 0.7, size).astype(np.float32),
    )


def spec_for(aggregation: str) -> Any:
    algorithm = {
        "aggregation": aggregation,
        "kl": {"coefficient": 0.05},
        "entropy": {"kind": "bonus", "coefficient": 0.01},
        "importance_correction": {"kind": "truncate", "cap": 3.0},
    }
    return make_spec(algorithm=algorithm)


def spread_gradient(folder: Path, batch: ExperienceBatch, aggregation: str, plan: StepPlan) -> dict[str, np.ndarray]:
    """Sums the gradients of all ranks, each computed separately."""
    model = load_causal_lm(str(folder / "model"), "float32")
    spec = spec_for(aggregation)
    optimizer = FlatAdamW(model, AdamWSpec())
    collective = Collective()
    learner = PolicyLearner(spec, PolicyForward(model, 0.8, "float32"), optimizer, collective)
    total = torch.zeros_like(optimizer.gradients)
    for rank in range(len(plan.parts)):
        collective.rank = rank
        learner.gradients(batch, columns_for(batch), plan)
        total += optimizer.gradients
    return {name: view.numpy() for name, view in optimizer.named(total).items()}


def reduced_gradients(
    folder: Path, batch: ExperienceBatch, aggregation: str, plan: StepPlan
) -> list[dict[str, np.ndarray]]:
    """Returns each rank's gradient after the all-reduce of a real group, whose members are threads here."""
    ranks = len(plan.parts)
    address = hold_address()
    # Loads one at a time, since transformers changes global state while loading.
    models = [load_causal_lm(str(folder / "model"), "float32") for _ in range(ranks)]

    def of_rank(rank: int) -> dict[str, np.ndarray]:
        model = models[rank]
        collective = Collective()
        optimizer = FlatAdamW(model, AdamWSpec())
        collective.connect(rank, ranks, address)
        learner = PolicyLearner(spec_for(aggregation), PolicyForward(model, 0.8, "float32"), optimizer, collective)
        learner.gradients(batch, columns_for(batch), plan)
        return {name: view.numpy() for name, view in optimizer.named(optimizer.gradients).items()}

    with ThreadPoolExecutor(ranks) as group:
        return list(group.map(of_rank, range(ranks)))


@cache
def plain_gradient(folder: Path, aggregation: str) -> dict[str, np.ndarray]:
    """Evaluates the formula in float64, one sequence at a time."""
    batch = batch_of(folder, random_task(folder, 1, seed=2))
    columns = columns_for(batch)
    assert columns.log_probs_old is not None
    assert columns.log_probs_ref is not None
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64).eval()
    sequences = []
    entropies = []
    for i in range(len(batch)):
        prompt = batch.prompt_tokens[batch.prompt_offsets[i] : batch.prompt_offsets[i + 1]]
        span = slice(batch.response_offsets[i], batch.response_offsets[i + 1])
        tokens = torch.tensor([[*prompt.tolist(), *batch.response_tokens[span].tolist()]])
        distribution = torch.log_softmax(model(input_ids=tokens).logits[0, len(prompt) - 1 : -1] / 0.8, -1)
        new = distribution.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        old, sampler, reference = (
            torch.tensor(values[span].astype(np.float64))
            for values in (columns.log_probs_old, batch.log_probs_sampler, columns.log_probs_ref)
        )
        ratio = (new - old).exp()
        advantage = columns.advantages[i]
        weight = (old - sampler).exp().clamp(max=3.0)
        policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * weight
        divergence = (reference - new).exp() - (reference - new) - 1
        entropy = -(distribution.exp() * distribution).sum(-1)
        counted = torch.tensor(batch.loss_mask[span])
        sequences.append((policy + 0.05 * divergence)[counted])
        entropies.append(entropy[counted])
    match aggregation:
        case "token_mean":
            loss = torch.cat(sequences).mean()
        case "sequence_mean":
            loss = sum(row.sum() / max(len(row), 1) for row in sequences) / len(sequences)
        case _:
            loss = torch.cat(sequences).sum() / (len(sequences) * MAX_NEW_TOKENS)
    loss = loss - 0.01 * torch.cat(entropies).mean()
    loss.backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def assert_equal_gradients(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-6, rtol=0, err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("ranks", "budget"), [(1, 10_000), (1, 40), (2, 10_000), (2, 17), (4, 10_000), (4, 33)])
def test_any_spread_gives_the_gradient_of_the_formula(
    folder: Path, batch: ExperienceBatch, aggregation: str, ranks: int, budget: int
) -> None:
    expected = plain_gradient(folder, aggregation)
    assert max(float(np.abs(gradient).max()) for gradient in expected.values()) > 1e-2
    plan = plan_step(batch.lengths, np.arange(len(batch)), ranks, budget)
    assert_equal_gradients(spread_gradient(folder, batch, aggregation, plan), expected)


@st.composite
def splits(draw: st.DrawFn, samples: int = 24) -> StepPlan:
    """Draws any division of the samples, in any order, into ranks and micro-batches; a rank may have none."""
    order = np.array(draw(st.permutations(range(samples))))
    ranks = draw(st.sampled_from([1, 2, 4]))
    cuts = st.lists(st.integers(0, samples), max_size=8)
    parts = np.split(order, sorted(draw(st.lists(st.integers(0, samples), min_size=ranks - 1, max_size=ranks - 1))))
    batches = (np.split(part, sorted({cut for cut in draw(cuts) if cut < len(part)})) for part in parts)
    return StepPlan(np.arange(samples), tuple(tuple(batch for batch in part if len(batch)) for part in batches))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=splits())
def test_any_cut_into_ranks_and_micro_batches_gives_the_gradient_of_the_formula(
    folder: Path, batch: ExperienceBatch, aggregation: str, plan: StepPlan
) -> None:
    assert sorted(np.concatenate([rows for part in plan.parts for rows in part]).tolist()) == list(range(len(batch)))
    assert_equal_gradients(spread_gradient(folder, batch, aggregation, plan), plain_gradient(folder, aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_real_groups_give_every_rank_the_gradient_of_the_formula(
    folder: Path, batch: ExperienceBatch, aggregation: str, ranks: int
) -> None:
    found = reduced_gradients(folder, batch, aggregation, plan_step(batch.lengths, np.arange(len(batch)), ranks, 33))
    assert_equal_gradients(found[0], plain_gradient(folder, aggregation))
    for other in found[1:]:
        for name, gradient in found[0].items():
            np.testing.assert_array_equal(other[name], gradient)


@pytest.mark.parametrize(("aggregation", "ranks", "budget"), [("token_mean", 1, 10_000), ("sequence_mean", 2, 17)])
def test_packed_samples_give_the_gradient_of_the_formula(
    folder: Path, batch: ExperienceBatch, aggregation: str, ranks: int, budget: int
) -> None:
    plan = plan_step(batch.lengths, np.arange(len(batch)), ranks, budget, packed=True)
    assert_equal_gradients(spread_gradient(folder, batch, aggregation, plan), plain_gradient(folder, aggregation))


def test_the_batch_is_ragged_enough_to_tell_the_aggregations_apart(folder: Path, batch: ExperienceBatch) -> None:
    assert len(set(batch.response_lengths.tolist())) > 3
    gradients = [plain_gradient(folder, aggregation)["model.norm.weight"] for aggregation in AGGREGATIONS]
    assert float(np.abs(gradients[0] - gradients[1]).max()) > 1e-4
    assert float(np.abs(gradients[0] - gradients[2]).max()) > 1e-4
