"""Streamed learning: gradients that are added up shard by shard are those of the whole batch, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.groups import Found, Job, run_ranks
from tests.engines.train.layouts import UNCLIPPED, Layout, expect, spec_of
from tests.engines.train.support import (
    make_engine,
    make_model_folder,
    make_spec,
    random_rows,
    update,
    weights_of,
    write_shards,
)
from yatt_core.algorithms.aggregation import denominator, token_weights, undivided_weights
from yatt_core.algorithms.moments import RewardMoments
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.errors import DataError, NumericError
from yatt_core.protocols.receipts import Admission, BatchTask
from yatt_core.spec.run import RunSpec

SHARDS = 3
STREAMED = {"streamed": True}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "token-mean": {"mask_truncated": True, "importance_correction": {"kind": "truncate", "cap": 2.0}},
    "sequence-mean": {"aggregation": "sequence_mean", "kl": {"coefficient": 0.05}, "loss": {"kind": "gspo"}},
    "fixed-length": {"aggregation": "fixed_length", "length_penalty": {"kind": "linear", "penalty": 0.5}},
    "penalty-and-bonus": {
        "kl": {"coefficient": 0.05, "where": "reward"},
        "entropy": {"kind": "bonus", "coefficient": 0.01},
        "reward_scaling": "running",
        "advantage": {"kind": "leave_one_out"},
    },
}
MOMENTS = RewardMoments(8, 0.25, 1.5)


def streamed_spec(algorithm: dict[str, Any] | None = None) -> RunSpec:
    return make_spec(algorithm=algorithm or {}, asynchrony=STREAMED)


def whole_spec(algorithm: dict[str, Any]) -> RunSpec:
    return make_spec(algorithm=algorithm)


def task_in(folder: Path, iteration: int = 1) -> BatchTask:
    task = write_shards(folder, iteration, random_rows(iteration), SHARDS)
    return replace(task, reward_moments=MOMENTS)


def first(task: BatchTask, count: int) -> BatchTask:
    return replace(task, shards=task.shards[:count])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model_folder(tmp_path / "model")


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """The gradients with which steps were taken."""
    found = list[torch.Tensor]()
    apply = FlatAdamW.apply

    def applied(optimizer: FlatAdamW, learning_rate: float, loss: float) -> float:
        found.append(optimizer.gradients.clone())
        return apply(optimizer, learning_rate, loss)

    monkeypatch.setattr(FlatAdamW, "apply", applied)
    yield found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_is_that_of_the_whole_batch(
    tmp_path: Path, model: Path, stepped: list[torch.Tensor], name: str
) -> None:
    task = task_in(tmp_path)
    whole = make_engine(make_spec(algorithm=ALGORITHMS[name]), tmp_path, model)
    streamed = make_engine(streamed_spec(ALGORITHMS[name]), tmp_path, model)
    for count in (1, 2):
        streamed.accumulate(first(task, count))
    expected, found = (update(engine, task) for engine in (whole, streamed))
    assert torch.linalg.vector_norm(stepped[1] - stepped[0]) <= 1e-6 * torch.linalg.vector_norm(stepped[0])
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-7)


def test_prepared_columns_metrics_and_moments_are_those_of_the_whole_batch(tmp_path: Path, model: Path) -> None:
    task = task_in(tmp_path)
    algorithm = {**ALGORITHMS["penalty-and-bonus"], "length_penalty": {"kind": "linear", "penalty": 0.5}}
    whole = make_engine(make_spec(algorithm=algorithm), tmp_path, model).prepare(task)
    streamed = make_engine(streamed_spec(algorithm), tmp_path, model).prepare(replace(task, term=2))
    assert whole is not None and streamed is not None
    assert streamed.metrics == pytest.approx(whole.metrics, abs=1e-7)
    assert set(streamed.metrics) == {"kl", "reward_scale", "length/penalty_mean"}
    assert (streamed.reward_moments.count, streamed.reward_moments.mean) == pytest.approx(
        (whole.reward_moments.count, whole.reward_moments.mean)
    )


def test_it_is_the_same_in_any_portions_and_after_any_interruption(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_in(tmp_path)
    spec = streamed_spec(ALGORITHMS["penalty-and-bonus"])
    engines = {name: make_engine(spec, tmp_path, model) for name in ("at once", "one by one", "lost", "others", "more")}
    for count in (1, 2, 2, 1, 3):
        engines["one by one"].accumulate(first(task, count))

    lost = engines["lost"]
    lost.accumulate(first(task, 1))
    with monkeypatch.context() as patched:
        patched.setattr(PolicyLearner, "add", failing_half_way(PolicyLearner.add))
        with pytest.raises(NumericError):
            lost.accumulate(task)
    lost.accumulate(first(task, 2))
    lost.offload()

    others = engines["others"]
    others.accumulate(replace(first(task, 2), reward_moments=RewardMoments()))
    others.accumulate(replace(first(task, 1), coefficients={"kl": 1.0}))
    others.accumulate(replace(task, shards=task.shards[::-1]))

    engines["more"].accumulate(replace(task, shards=(*task.shards, *task.shards[:1])))

    found = {name: update(engine, task) for name, engine in engines.items()}
    expected = found["at once"]
    for name, receipt in found.items():
        assert receipt.fingerprint == expected.fingerprint, name
        assert receipt.metrics == expected.metrics, name
    reference = weights_of(engines["at once"])
    for name, engine in engines.items():
        for tensor, values in weights_of(engine).items():
            np.testing.assert_array_equal(values, reference[tensor], err_msg=name)


def failing_half_way(add: Any) -> Any:
    """Adds the gradients of a shard, and then fails."""

    def failing(*given: Any, **named: Any) -> Any:
        add(*given, **named)
        raise NumericError("half-way")

    return failing


def test_a_skipped_update_leaves_nothing_for_the_next_one(tmp_path: Path, model: Path) -> None:
    engines = [make_engine(streamed_spec(), tmp_path, model) for _ in range(2)]
    tasks = [task_in(tmp_path, iteration) for iteration in (1, 2)]
    engines[0].accumulate(first(tasks[0], 2))
    receipts = []
    for engine in engines:
        engine.skip(tasks[0])
        receipts.append(update(engine, tasks[1]))
    assert receipts[0].fingerprint == receipts[1].fingerprint


def test_what_is_learnt_already_is_not_learnt_again(tmp_path: Path, model: Path) -> None:
    """A driver that finds its trainer ahead of the last commit names the shards once more."""
    engines = [make_engine(streamed_spec(), tmp_path, model) for _ in range(2)]
    tasks = [task_in(tmp_path, iteration) for iteration in (1, 2)]
    for engine in engines:
        update(engine, tasks[0])
    assert engines[0].accumulate(tasks[0]) == 0.0
    receipts = [update(engine, tasks[1]) for engine in engines]
    assert receipts[0].fingerprint == receipts[1].fingerprint


def test_only_admitted_groups_count_and_none_may_be_missing(
    tmp_path: Path, model: Path, stepped: list[torch.Tensor]
) -> None:
    task = task_in(tmp_path)
    admission = Admission((0, 1, 3, 4), (2, 5))
    whole = make_engine(make_spec(), tmp_path, model)
    streamed = make_engine(streamed_spec(), tmp_path, model)
    # What is known so far: shard n has the groups n and n + 3.
    streamed.accumulate(replace(first(task, 1), admission=Admission((0, 3))))
    streamed.accumulate(replace(first(task, 2), admission=Admission((0, 1, 3, 4))))
    for engine in (whole, streamed):
        update(engine, replace(task, admission=admission))
    assert torch.linalg.vector_norm(stepped[1] - stepped[0]) <= 1e-6 * torch.linalg.vector_norm(stepped[0])
    with pytest.raises(DataError, match="7"):
        make_engine(streamed_spec(), tmp_path, model).prepare(replace(task, admission=Admission((0, 7))))


def test_a_shard_without_scores_adds_nothing(tmp_path: Path, model: Path, stepped: list[torch.Tensor]) -> None:
    """Refilling leaves such shards in an iteration."""
    rows = [{**row, "unscored": "exact" if row["prompt_ordinal"] % SHARDS == 0 else None} for row in random_rows(1)]
    written = write_shards(tmp_path, 1, rows, SHARDS)
    task = replace(written, reward_moments=MOMENTS, admission=Admission((1, 2, 4, 5)))
    algorithm = ALGORITHMS["fixed-length"]
    engines = [make_engine(make(algorithm), tmp_path, model) for make in (whole_spec, streamed_spec)]
    engines[1].accumulate(replace(first(task, 1), admission=Admission(())))
    found = []
    for engine, term in zip(engines, (1, 2), strict=True):
        prepared = engine.prepare(replace(task, term=term))
        assert prepared is not None
        found.append(prepared.metrics | engine.learn(task, prepared).metrics)
    assert torch.linalg.vector_norm(stepped[1] - stepped[0]) <= 1e-6 * torch.linalg.vector_norm(stepped[0])
    assert found[1] == pytest.approx(found[0], rel=1e-5, abs=1e-7)
    assert found[1]["length/penalty_mean"] > 0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_weights_without_a_denominator_are_those_of_the_step_times_it(aggregation: Any) -> None:
    lengths = np.array([3, 0, 7, 1])
    divisor = denominator(len(lengths), int(lengths.sum()), aggregation)
    expected = token_weights(lengths, aggregation, 7)
    np.testing.assert_allclose(undivided_weights(lengths, aggregation, 7) / divisor, expected, rtol=1e-15)
    assert denominator(0, 0, aggregation) == 1


@pytest.mark.verify
@pytest.mark.parametrize(
    "layout",
    [
        Layout(2, {"kind": "torch", "ranks": 2, "micro_batch_tokens": 60}),
        Layout(2, {"kind": "torch", "ranks": 2, "micro_batch_tokens": 60, "packed": True}),
        Layout(2, {"kind": "fsdp2", "ranks": 2, "dtype": "float32", "micro_batch_tokens": 60}),
        Layout(4, {"kind": "fsdp2", "ranks": 4, "dtype": "float32", "micro_batch_tokens": 60}),
    ],
    ids=["torch", "packed", "fsdp2", "fsdp2-4"],
)
def test_ranks_that_divide_a_shard_equal_a_plain_loop(layout: Layout, tmp_path: Path) -> None:
    """The weights of five updates; with a reference, gradients and columns of several ranks have the same bits in portions."""
    expected = expect(tmp_path / "expected", layout.family)
    plain = on_streams(spec_of(layout.engine, UNCLIPPED))
    referenced = on_streams(spec_of(layout.engine, UNCLIPPED, {"kl": {"coefficient": 0.05}}))
    jobs = [
        Job(plain, expected.model, range(1, 6), ahead=(1,)),
        Job(referenced, expected.model, range(1, 4)),
        Job(referenced, expected.model, range(1, 4), ahead=(1, 2)),
    ]
    ranks = run_ranks(layout.ranks, jobs, tmp_path)
    assert {name: close(values, expected.weights[UNCLIPPED][name]) for name, values in ranks[0][0].weights.items()} == (
        dict.fromkeys(ranks[0][0].weights, True)
    )
    for jobs_of_rank in ranks:
        assert prints(jobs_of_rank[1]) == prints(jobs_of_rank[2]) == prints(ranks[0][1])


def on_streams(spec: RunSpec) -> RunSpec:
    return RunSpec.model_validate({**spec.model_dump(mode="json"), "asynchrony": STREAMED})


def close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return bool(np.allclose(one, other, atol=1e-6, rtol=0))


def prints(found: Found) -> list[Any]:
    return [receipt.fingerprint for receipt in found.receipts]
