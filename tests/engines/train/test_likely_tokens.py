"""Distillation over the teachers' likeliest tokens: formula, gradients, variance, mixtures, and every layout of ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.support import (
    VOCABULARY,
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    prepare,
    random_rows,
    random_task,
    update,
    write_shards,
)
from tests.engines.train.test_sampler_support import replaying_spec, sampled_task
from tests.engines.train.test_teachers import TEMPERATURE, TEMPLATE, folder_of, shown_task
from tests.matrix import examples
from tests.needs import NEEDS_MEGATRON
from yatt_core.algorithms.distillation import (
    NO_TOKEN,
    bucket_divergence,
    candidates_of,
    likeliest,
    mixed_likely_tokens,
    with_tail,
)
from yatt_core.engines.train.base.preparation import read_columns
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns, read_prepared
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.run import RunSpec

COUNT = 5
COEFFICIENT = 0.7


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [make_model_folder(tmp_path_factory.mktemp("teachers") / f"{seed}", seed) for seed in (5, 6)]


def likely_spec(engine: dict[str, Any] | None = None, count: int | None = COUNT, **distillation: Any) -> RunSpec:
    keys = {"distillation": {"top_k": count, "coefficient": COEFFICIENT, **distillation}}
    optimizer = {"learning_rate": 1e-2, "epsilon": 1e-4}
    return make_spec(
        algorithm=keys, trainer={"engine": engine or {"kind": "torch", "ranks": 1}, "optimizer": optimizer}
    )


def taught_by(*folders: Path) -> list[dict[str, Any]]:
    return [{"model": folder_of(folder), "weight": 1.0 + 2.0 * number} for number, folder in enumerate(folders)]


def distributions(model: Any, batch: ExperienceBatch) -> torch.Tensor:
    """Returns a model's distribution at each response token of a batch, [T, vocabulary]."""
    found = []
    for index in range(len(batch)):
        prompt = batch.prompt_tokens[slice(*batch.prompt_offsets[index : index + 2])]
        response = batch.response_tokens[slice(*batch.response_offsets[index : index + 2])]
        tokens = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
        logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : len(prompt) - 1 + len(response)]
        found.append((logits / TEMPERATURE).softmax(-1))
    return torch.cat(found)


def wide(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def plain_divergence(student: torch.Tensor, teacher: torch.Tensor, count: int) -> torch.Tensor:
    """Computes sum p log(p / q) over the teacher's likeliest tokens and the rest as one, in plain probabilities, [T]."""
    found = []
    for p, q in zip(student, teacher, strict=True):
        order = q.argsort(descending=True)
        listed = order[:count]
        rest = order[count:]
        parts = (p[listed] * (p[listed] / q[listed]).log()).sum()
        if len(rest):
            parts = parts + p[rest].sum() * (p[rest].sum() / q[rest].sum()).log()
        found.append(parts)
    return torch.stack(found)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 9), rows=st.integers(1, 4), spread=st.floats(0.1, 6.0))
def test_the_divergence_and_its_gradient_equal_the_formula(seed: int, count: int, rows: int, spread: float) -> None:
    noise = np.random.default_rng(seed)
    logits, given_teacher = (noise.normal(0.0, spread, (rows, 9)) for _ in range(2))
    weights = noise.normal(size=rows)

    def plain(values: np.ndarray[Any, Any]) -> float:
        p, q = (torch.from_numpy(one).softmax(-1) for one in (values, given_teacher))
        return float((torch.from_numpy(weights) * plain_divergence(p, q, count)).sum())

    student = torch.tensor(logits, requires_grad=True)
    tokens, teacher = likeliest(torch.from_numpy(given_teacher).log_softmax(-1), count, 9)
    found = (torch.from_numpy(weights) * bucket_divergence(with_tail(student.log_softmax(-1), tokens), teacher)).sum()
    found.backward()
    assert float(found.detach()) == pytest.approx(plain(logits), rel=1e-9, abs=1e-9)
    assert student.grad is not None
    for place in np.ndindex(logits.shape):
        high = logits.copy()
        low = logits.copy()
        high[place] += 1e-5
        low[place] -= 1e-5
        assert float(student.grad[place]) == pytest.approx((plain(high) - plain(low)) / 2e-5, rel=1e-5, abs=2e-5)
    whole = (student.softmax(-1) * (student.log_softmax(-1) - torch.from_numpy(given_teacher).log_softmax(-1))).sum(1)
    merged = bucket_divergence(with_tail(student.log_softmax(-1), tokens), teacher)
    assert bool((merged <= whole + 1e-9).all()) and bool((merged >= -1e-9).all())


def test_tails_without_mass_and_sharp_distributions_stay_finite() -> None:
    sharp = torch.tensor([[0.0, -300.0, -400.0, -500.0], [-1e18, 0.0, -1e18, -1e18]], requires_grad=True)
    teacher = torch.tensor([[0.0, 0.0, -200.0, -300.0], [-1e18, 0.0, -1e18, -1e18]]).log_softmax(-1)
    for count in (1, 2, 4):
        tokens, listed = likeliest(teacher, count, 4)
        value = bucket_divergence(with_tail(sharp.log_softmax(-1), tokens), listed)
        (gradient,) = torch.autograd.grad(value.sum(), sharp)
        assert bool(torch.isfinite(value).all()) and bool(torch.isfinite(gradient).all())
        assert value.tolist() == pytest.approx([np.log(2.0), 0.0], abs=1e-6)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 6), members=st.integers(2, 4))
def test_a_mixture_lists_the_likeliest_of_those_that_any_teacher_names(seed: int, count: int, members: int) -> None:
    noise = np.random.default_rng(seed)
    logits = noise.normal(0.0, 2.0, (members, 3, 8))
    weights = noise.uniform(0.1, 3.0, members)
    each = [torch.from_numpy(one).log_softmax(-1) for one in logits]
    candidates = candidates_of([likeliest(one, count, 8)[0].int().numpy() for one in each])
    found = [with_tail(one, torch.from_numpy(candidates.astype(np.int64))).float().numpy() for one in each]
    mixed = mixed_likely_tokens(candidates, found, weights.tolist(), count)
    probabilities = np.average(np.exp([one.numpy() for one in each]), axis=0, weights=weights)
    for row in range(3):
        named = sorted({token for one in each for token in one[row].topk(count).indices.tolist()})
        assert sorted(candidates[row][candidates[row] != NO_TOKEN].tolist()) == named
        expected = sorted(named, key=lambda token: -probabilities[row, token])[:count]
        assert mixed.tokens[row].tolist() == expected
        np.testing.assert_allclose(np.exp(mixed.log_probs[row, :-1]), probabilities[row, expected], rtol=1e-5)
        assert np.exp(mixed.log_probs[row, -1]) == pytest.approx(1.0 - probabilities[row, expected].sum(), abs=1e-6)


def columns_of(engine: Any, folder: Path, task: BatchTask) -> PreparedColumns:
    receipt = prepare(engine, task)
    return read_prepared(folder, receipt.folder, receipt.files)


def gradient_of(engine: Any, folder: Path, task: BatchTask) -> np.ndarray[Any, Any]:
    """Returns the gradient of an update's only step, without taking it."""
    spec = engine._spec
    batch = engine.workload.batches.batch(task, engine.policy.collective, engine.policy.plans())
    columns, _ = read_columns(spec, folder, batch, prepare(engine, task))
    (step,) = engine.policy.plans().steps(batch, task.key)
    PolicyLearner(spec, engine.policy.forward, engine.policy.optimizer, engine.policy.collective).gradients(
        batch, columns, step
    )
    found: np.ndarray[Any, Any] = engine.policy.optimizer.gradients.clone().numpy()
    return found


@pytest.mark.parametrize("engine", [{}, {"kernels": "general"}, {"kernels": "general", "packed": True}])
@pytest.mark.parametrize("mixed", [False, True])
def test_an_update_has_the_gradient_of_a_plain_computation(
    engine: dict[str, Any], mixed: bool, tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    """Rewards are equal, so that the teachers alone are learned from."""
    chosen = teachers if mixed else teachers[:1]
    spec = likely_spec({"kind": "torch", "ranks": 1, "micro_batch_tokens": 60, **engine}, teachers=taught_by(*chosen))
    task = write_shards(tmp_path, 1, [row | {"reward": 1.0} for row in random_rows(1)])
    trainer = make_engine(spec, tmp_path, model_folder)
    batch = batch_of(tmp_path, task)
    model = wide(model_folder)
    weights = [1.0, 3.0][: len(chosen)]
    with torch.no_grad():
        each = torch.stack([distributions(wide(folder), batch) for folder in chosen])
    teacher = (each * torch.tensor(weights)[:, None, None]).sum(0) / sum(weights)
    counted = torch.from_numpy(batch.loss_mask)
    mean = plain_divergence(distributions(model, batch)[counted], teacher[counted], COUNT).mean()
    (COEFFICIENT * mean).backward()
    receipt = update(trainer, task)
    squares = sum(
        float(parameter.grad.square().sum()) for parameter in model.parameters() if parameter.grad is not None
    )
    tolerance = 2e-2 if mixed else 1e-4  # a token that no teacher names may be likelier than one that is named
    assert receipt.metrics["distillation_kl"] == pytest.approx(float(mean.detach()), rel=tolerance)
    assert receipt.metrics["loss"] == pytest.approx(COEFFICIENT * float(mean.detach()), rel=tolerance)
    assert receipt.metrics["grad_norm"] == pytest.approx(np.sqrt(squares), rel=5 * tolerance)


def test_kernels_agree_on_the_gradient(tmp_path: Path, model_folder: Path, teachers: list[Path]) -> None:
    found = []
    for kernels in ("auto", "general"):
        spec = likely_spec({"kind": "torch", "ranks": 1, "kernels": kernels}, teachers=taught_by(*teachers))
        trainer = make_engine(spec, tmp_path / kernels, model_folder)
        gradient = gradient_of(trainer, tmp_path / kernels, random_task(tmp_path / kernels, 1))
        found.append(
            {name: view.clone() for name, view in trainer.policy.optimizer.named(torch.from_numpy(gradient)).items()}
        )
    assert any(float(view.abs().max()) > 1e-3 for view in found[0].values())
    for name, view in found[0].items():
        torch.testing.assert_close(view, found[1][name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.verify
def test_gradients_vary_less_than_those_of_one_token(tmp_path: Path, model_folder: Path, teachers: list[Path]) -> None:
    """Over new draws of the same responses' tokens; with the whole vocabulary, both have the same mean."""
    gradients: dict[int | None, list[np.ndarray[Any, Any]]] = {}
    shares = shares_of(model_folder)
    for count in (None, COUNT, VOCABULARY):
        spec = likely_spec(count=count, teachers=taught_by(teachers[0]))
        trainer = make_engine(spec, tmp_path / str(count), model_folder)
        gradients[count] = []
        for draw in range(24):
            task = write_shards(tmp_path / str(count), draw + 1, drawn_rows(shares, draw))
            trainer._version = draw
            gradients[count].append(gradient_of(trainer, tmp_path / str(count), task))
    spread = {count: float(np.var(found, axis=0).sum()) for count, found in gradients.items()}
    assert spread[COUNT] < 0.2 * spread[None]
    assert spread[VOCABULARY] < 0.2 * spread[None]
    means = {count: np.mean(found, axis=0) for count, found in gradients.items()}
    error = np.linalg.norm(means[None] - means[VOCABULARY])
    assert error < 4.0 * np.sqrt(spread[None] / 24)


def shares_of(model_folder: Path) -> Callable[[list[int]], tuple[Any, Any]]:
    """Returns a function from a prompt to the policy's distribution of a first token, and of a second after each first."""
    model = wide(model_folder)

    @cache
    def shares(prompt: tuple[int, ...]) -> tuple[Any, Any]:
        rows = torch.tensor([[*prompt, token] for token in range(VOCABULARY)])
        with torch.no_grad():
            found = (model(input_ids=rows).logits[:, -2:] / TEMPERATURE).softmax(-1).numpy()
        return found[0, 0], found[:, 1]

    return lambda prompt: shares(tuple(prompt))


def drawn_rows(shares: Callable[[list[int]], tuple[Any, Any]], draw: int) -> list[dict[str, Any]]:
    """Returns samples with the same prompts, whose two tokens are drawn anew from the policy, and equal rewards."""
    noise = np.random.default_rng(draw)
    rows = random_rows(1, samples=4)
    for row in rows:
        first, second = shares(row["prompt_tokens"])
        one = int(noise.choice(VOCABULARY, p=first))
        tokens = [one, int(noise.choice(VOCABULARY, p=second[one]))]
        row |= {"response_tokens": tokens, "log_probs_sampler": [0.0, 0.0], "loss_mask": [True, True], "reward": 1.0}
    return rows


def test_columns_hold_the_likeliest_tokens_of_the_iterations_teachers(
    tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    one, other = map(folder_of, teachers)
    cascade = [{"model": one, "last_iteration": 1}, {"model": other, "first_iteration": 2}]
    engine = make_engine(likely_spec(teachers=cascade), tmp_path, model_folder)
    for iteration, folder in enumerate(teachers, 1):
        task = random_task(tmp_path, iteration)
        batch = batch_of(tmp_path, task)
        columns = columns_of(engine, tmp_path, task)
        assert columns.log_probs_teacher is None
        assert columns.teacher_tokens is not None and columns.teacher_log_probs is not None
        with torch.no_grad():
            expected = distributions(wide(folder), batch)[torch.from_numpy(batch.loss_mask)]
        values, tokens = expected.sort(descending=True)
        np.testing.assert_array_equal(columns.teacher_tokens[batch.loss_mask], tokens[:, :COUNT])
        found = np.exp(columns.teacher_log_probs[batch.loss_mask])
        np.testing.assert_allclose(found[:, :-1], values[:, :COUNT], atol=2e-6)
        np.testing.assert_allclose(found[:, -1], values[:, COUNT:].sum(1), atol=2e-6)
        update(engine, task)


def test_a_replayed_support_bounds_what_is_compared(tmp_path: Path, model_folder: Path, teachers: list[Path]) -> None:
    distillation = {"teachers": taught_by(teachers[0]), "top_k": 12}
    engine = make_engine(replaying_spec(distillation=distillation, mini_batches=2), tmp_path, model_folder)
    metrics = update(engine, sampled_task(model_folder, tmp_path, 1)).metrics
    assert np.isfinite(list(metrics.values())).all() and metrics["distillation_kl"] > 0.0


def test_more_tokens_than_there_are_and_prepared_columns_without_them_are_refused(
    tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    task = random_task(tmp_path, 1)
    many = make_engine(likely_spec(count=VOCABULARY + 1, teachers=taught_by(teachers[0])), tmp_path, model_folder)
    with pytest.raises(ConfigurationError, match=r"^algorithm\.distillation\.top_k: 25 .*\b24 tokens"):
        many.prepare(task)
    plain = make_engine(likely_spec(count=None, teachers=taught_by(teachers[0])), tmp_path, model_folder)
    prepared = prepare(plain, task)
    likely = make_engine(likely_spec(teachers=taught_by(teachers[0])), tmp_path, model_folder)
    with pytest.raises(DataError, match=r"teacher_tokens.*distillation\.top_k"):
        likely.learn(task, prepared)


RANKED = [
    pytest.param({"kind": "torch", "ranks": 2}, id="torch"),
    pytest.param({"kind": "fsdp2", "ranks": 2, "dtype": "float32"}, id="fsdp2"),
]
MEGATRON = [
    pytest.param(
        {
            "kind": "megatron",
            "dtype": "float32",
            "tensor_model_parallel_size": tensors,
            "pipeline_model_parallel_size": stages,
            "data_parallel_size": copies,
        },
        id=f"megatron-tp{tensors}-pp{stages}-dp{copies}",
        marks=NEEDS_MEGATRON,
    )
    for tensors, stages, copies in ((2, 1, 1), (1, 2, 1), (1, 1, 2))
]


@pytest.mark.verify
@pytest.mark.parametrize("engine", RANKED)
def test_ranks_change_no_result(
    engine: dict[str, Any], tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    check_ranks(engine, {"teachers": taught_by(*teachers)}, tmp_path, model_folder)


@pytest.mark.verify
@pytest.mark.parametrize("engine", [*RANKED, *MEGATRON])
def test_a_policy_teaches_itself_on_every_trainer(engine: dict[str, Any], tmp_path: Path, model_folder: Path) -> None:
    check_ranks(engine, {"privileged": {"template": TEMPLATE}}, tmp_path, model_folder)


def check_ranks(engine: dict[str, Any], distillation: dict[str, Any], tmp_path: Path, model_folder: Path) -> None:
    """Compares three updates on two ranks, which connect again in between, with those of one rank."""
    make_task = shown_task if "privileged" in distillation else random_task
    plain = make_engine(likely_spec(**distillation), tmp_path / "plain", model_folder)
    alone = [update(plain, make_task(tmp_path / "plain", iteration)).metrics for iteration in range(1, 4)]
    job = Job(likely_spec(engine, **distillation), model_folder, range(1, 4), rejoin_at=2, make_task=make_task)
    found = run_ranks(2, [job], tmp_path)[0][0]
    for expected, receipt in zip(alone, found.receipts, strict=True):
        for name in ("distillation_kl", "loss", "grad_norm", "entropy"):
            assert receipt.metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
