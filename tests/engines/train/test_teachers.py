"""Several teachers, one after another or mixed, and the policy as its own teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from benchmarks.in_process import save_model
from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.plain import plain_log_probs
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
from tests.matrix import examples
from tests.spec.trees import VIRTUAL, mistakes, spec
from yatt_core.algorithms.distillation import mixed_log_probs
from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import read_prepared
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.run import RunSpec

TEMPERATURE = 0.8
TEMPLATE = "{prompt} {answer}"


def folder_of(path: Path | str) -> dict[str, str]:
    return {"kind": "folder", "path": str(path)}


def taught_spec(**distillation: Any) -> RunSpec:
    return make_spec(algorithm={"distillation": distillation})


def plain_scores(folder: Path, batch: ExperienceBatch) -> np.ndarray[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = [plain_log_probs(model, batch, index, TEMPERATURE) for index in range(len(batch))]
    return torch.cat(found).double().numpy()


def teacher_column(engine: Any, folder: Path, task: BatchTask) -> np.ndarray[Any, Any]:
    receipt = prepare(engine, task)
    column = read_prepared(folder, receipt.folder, receipt.files).log_probs_teacher
    assert column is not None
    return column


def saved(engine: Any, like: Path, to: Path) -> Path:
    save_model({name: np.array(tensor) for name, tensor in engine.stream_weights()}, str(like), to)
    return to


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [make_model_folder(tmp_path_factory.mktemp("teachers") / f"{seed}", seed) for seed in (5, 6)]


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(50), deadline=None)
def test_a_mixture_has_the_weighted_mean_of_the_probabilities(weights: list[float], count: int, seed: int) -> None:
    found = np.random.default_rng(seed).uniform(-60.0, 0.0, (len(weights), count)).astype(np.float32)
    expected = np.log(np.average(np.exp(found.astype(np.float64)), axis=0, weights=weights))
    np.testing.assert_allclose(mixed_log_probs(list(found), weights), expected, rtol=1e-6, atol=1e-6)


def test_a_single_teacher_keeps_its_bits() -> None:
    found = np.random.default_rng(0).uniform(-60.0, 0.0, 100).astype(np.float32)
    assert np.array_equal(mixed_log_probs([found], [0.3]), found)


def test_teachers_of_one_iteration_are_mixed_and_others_follow_them(
    tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    one, other = map(folder_of, teachers)
    distillation = {
        "teachers": [
            {"model": one, "weight": 1.0, "last_iteration": 2},
            {"model": other, "weight": 3.0, "first_iteration": 2},
        ]
    }
    engine = make_engine(taught_spec(**distillation), tmp_path, model_folder)
    shares = {1: (1.0, 0.0), 2: (0.25, 0.75), 3: (0.0, 1.0)}
    for iteration, (of_one, of_other) in shares.items():
        task = random_task(tmp_path, iteration)
        batch = batch_of(tmp_path, task)
        found = teacher_column(engine, tmp_path, task)
        probabilities = [np.exp(plain_scores(folder, batch)) for folder in teachers]
        expected = np.log(of_one * probabilities[0] + of_other * probabilities[1])
        np.testing.assert_allclose(found[batch.loss_mask], expected[batch.loss_mask], atol=3e-6)
        assert engine.policy.teachers is not None
        assert len(engine.policy.teachers.modules) == (of_one > 0) + (of_other > 0), "only those who teach are held"
        update(engine, task)


def shown_task(folder: Path, iteration: int, vocabulary: int = VOCABULARY) -> BatchTask:
    """Returns a task with prompts of other lengths for the teacher."""
    rows = random_rows(iteration, vocabulary=vocabulary)
    noise = np.random.default_rng([7, iteration])
    shown = {
        ordinal: noise.integers(0, vocabulary, 3 + ordinal % 9).tolist()
        for ordinal in {r["prompt_ordinal"] for r in rows}
    }
    return write_shards(
        folder, iteration, [{**row, "teacher_prompt_tokens": shown[row["prompt_ordinal"]]} for row in rows]
    )


def test_the_policy_scores_its_answers_after_what_its_teacher_sees(tmp_path: Path, model_folder: Path) -> None:
    own = {"template": TEMPLATE, "teacher_interval": 1}
    engine = make_engine(taught_spec(privileged=own), tmp_path, model_folder)
    assert engine.policy.reference is None, "it needs no second copy"
    task = shown_task(tmp_path, 1)
    batch = batch_of(tmp_path, task)
    expected = plain_scores(model_folder, batch.shown_to_teacher())
    found = teacher_column(engine, tmp_path, task)
    np.testing.assert_allclose(found[batch.loss_mask], expected[batch.loss_mask], atol=3e-6)
    own = plain_scores(model_folder, batch)
    divergence = (own - expected)[batch.loss_mask].mean()
    assert abs(divergence) > 0.01, "what the teacher sees matters"
    assert update(engine, task).metrics["distillation_kl"] == pytest.approx(divergence, abs=1e-5)


@pytest.mark.parametrize("interval", [None, 1, 2])
@pytest.mark.parametrize("kl", [False, True])
def test_the_policys_teacher_is_the_policy_of_its_interval(
    interval: int | None, kl: bool, tmp_path: Path, model_folder: Path
) -> None:
    """A teacher that stays has the weights of before the first iteration; a checkpoint holds one that follows."""
    privileged = {"template": TEMPLATE, "teacher_interval": interval}
    algorithm: dict[str, Any] = {"distillation": {"privileged": privileged}}
    if kl:
        algorithm["kl"] = {"coefficient": 0.1, "reference_interval": interval}
    spec = make_spec(algorithm=algorithm)
    engine = make_engine(spec, tmp_path, model_folder)
    policies: list[Path] = [model_folder]
    for iteration in range(1, 5):
        task = shown_task(tmp_path, iteration)
        teacher = policies[0 if interval is None else (iteration - 1) // interval * interval]
        expected = plain_scores(teacher, batch_of(tmp_path, task).shown_to_teacher())
        counted = batch_of(tmp_path, task).loss_mask
        np.testing.assert_allclose(teacher_column(engine, tmp_path, task)[counted], expected[counted], atol=3e-6)
        update(engine, task)
        policies.append(saved(engine, model_folder, tmp_path / f"policy-{iteration}"))
        if iteration == 3:
            (tmp_path / "checkpoint").mkdir()
            engine.freeze_state()(tmp_path / "checkpoint")
    assert not np.allclose(
        plain_scores(policies[0], batch_of(tmp_path, task)), plain_scores(policies[3], batch_of(tmp_path, task))
    )
    digest = engine.weights_digest()
    other = make_engine(spec, tmp_path, model_folder)
    other.restore(tmp_path / "checkpoint", 3)
    update(other, task)
    assert other.weights_digest() == digest


def test_a_reference_and_a_teacher_with_other_intervals_are_refused() -> None:
    for kl, teacher, expected in ((None, 3, "null"), (2, None, "2"), (2, 3, "2")):
        distillation = {"privileged": {"teacher_interval": teacher}}
        (line,) = mistakes(algorithm={"distillation": distillation, "kl": {"reference_interval": kl}})
        assert line.startswith("algorithm: distillation.privileged.teacher_interval: ") and f" {expected}, or 1" in line


def test_samples_taken_from_a_batch_keep_what_the_teacher_sees(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, shown_task(tmp_path, 1))
    one = batch.take(np.array([5, 2])).shown_to_teacher()
    for place, index in enumerate((5, 2)):
        shown = batch.shown_to_teacher().take(np.array([index]))
        begin, end = one.prompt_offsets[place : place + 2]
        assert one.prompt_tokens[begin:end].tolist() == shown.prompt_tokens.tolist()


def test_experience_without_prompts_for_the_teacher_is_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(taught_spec(privileged={"template": TEMPLATE}), tmp_path, model_folder)
    with pytest.raises(DataError, match=r"teacher_prompt_tokens.*distillation\.privileged"):
        engine.prepare(random_task(tmp_path, 1))


@pytest.mark.verify
@pytest.mark.parametrize(
    "engine",
    [{"kind": "torch", "ranks": 2}, {"kind": "fsdp2", "ranks": 2, "dtype": "float32"}],
    ids=["torch", "fsdp2"],
)
@pytest.mark.parametrize("privileged", [True, False])
def test_ranks_and_restarts_change_no_result(
    engine: dict[str, Any], privileged: bool, tmp_path: Path, model_folder: Path, teachers: list[Path]
) -> None:
    one, other = map(folder_of, teachers)
    cascade = {"teachers": [{"model": one, "last_iteration": 2}, {"model": other, "first_iteration": 3}]}
    distillation = {"privileged": {"template": TEMPLATE}} if privileged else cascade
    task = shown_task if privileged else random_task
    plain = make_engine(taught_spec(**distillation), tmp_path / "plain", model_folder)
    alone = [update(plain, task(tmp_path / "plain", iteration)).metrics for iteration in range(1, 5)]
    ranked = make_spec(algorithm={"distillation": distillation}, trainer={"engine": engine})
    job = Job(ranked, model_folder, range(1, 5), rejoin_at=3, make_task=task)
    found = run_ranks(2, [job], tmp_path)[0][0]
    for expected, receipt in zip(alone, found.receipts, strict=True):
        assert receipt.metrics["distillation_kl"] == pytest.approx(expected["distillation_kl"], rel=1e-4, abs=1e-6)
        assert receipt.metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)


def test_who_teaches_when_is_checked() -> None:
    def lines(**distillation: Any) -> list[str]:
        return mistakes(algorithm={"distillation": distillation}, iterations=10)

    model = folder_of("/a")
    (nobody,) = lines(teachers=[{"model": model, "last_iteration": 4}, {"model": model, "first_iteration": 6}])
    assert nobody.startswith("algorithm.distillation.teachers: ") and "iteration 5" in nobody and "1 to 10" in nobody
    (late,) = lines(teachers=[{"model": model, "first_iteration": 2}])
    assert "iteration 1;" in late
    (turned,) = lines(teachers=[{"model": model, "first_iteration": 3, "last_iteration": 2}])
    assert turned.startswith("algorithm.distillation.teachers.0: ")
    for both in ({}, {"teachers": [{"model": model}], "privileged": {}}):
        (line,) = lines(**both)
        assert line.startswith("algorithm.distillation: ") and "teachers" in line and "privileged" in line
    for template, named in (("{prompt}", "{answer}"), ("{answer} {prompt} {other}", "{other}"), ("{answer", "")):
        (line,) = lines(privileged={"template": template})
        assert line.startswith("algorithm.distillation.privileged.template: ") and named in line
    spec(
        algorithm={"distillation": {"teachers": [{"model": model, "last_iteration": 10}]}},
        iterations=10,
    )


def test_a_virtual_policy_cannot_teach_itself() -> None:
    (line,) = mistakes(algorithm={"distillation": {"privileged": {}}}, **VIRTUAL)
    assert line.startswith("algorithm.distillation.privileged: ")


def test_a_policy_cannot_teach_itself_with_rendered_prompts() -> None:
    rendered = {"kind": "jsonl", "path": "rows.jsonl", "rendered": True}
    (line,) = mistakes(data={"sources": [rendered]}, algorithm={"distillation": {"privileged": {}}})
    assert line.startswith("algorithm.distillation.privileged: ") and "data.sources.0 are rendered" in line
