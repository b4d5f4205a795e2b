"""An aligned run learns only from responses whose log-probabilities the trainer computes to the last bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.rollout.cases import request_of
from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.support import (
    MAX_NEW_TOKENS,
    make_engine,
    make_model_folder,
    make_spec,
    random_rows,
    update,
    weights_of,
    write_shards,
)
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.errors import AlignmentError, ConfigurationError
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec

TEMPERATURE = 0.8


def sampled_rows(folder: Path, dtype: str) -> list[dict[str, Any]]:
    """Returns an iteration's samples, whose responses an aligned sampler has drawn."""
    engine = TorchRolloutEngine(str(folder), dtype, 16, MAX_NEW_TOKENS, folder, folder_version=0, aligned=True)
    rows = random_rows(1)
    prompts = [np.array(row["prompt_tokens"], np.int32) for row in rows[::4]]
    request = request_of(prompts, 4, max_new_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE)
    result = engine.generate(request)
    ends = np.cumsum(result.lengths)[:-1]
    for row, tokens, log_probs in zip(
        rows, np.split(result.tokens, ends), np.split(result.log_probs, ends), strict=True
    ):
        row |= {"response_tokens": tokens.tolist(), "log_probs_sampler": log_probs.tolist()}
        row["loss_mask"] = [True] * len(tokens)
    return rows


def with_a_bit_moved(rows: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Returns samples in which the last log-probability of one is the next lower number."""
    log_probs = np.array(rows[number]["log_probs_sampler"], np.float32)
    lower = np.nextafter(log_probs[-1], np.float32(-9))
    moved = [{**row} for row in rows]
    moved[number]["log_probs_sampler"] = [*log_probs[:-1].tolist(), float(lower)]
    return moved


@pytest.mark.parametrize(
    ("dtype", "mini_batches", "epochs"),
    [
        ("float32", 1, 1),
        ("bfloat16", 1, 1),
        ("float32", 2, 1),
        ("bfloat16", 2, 1),
        ("float32", 6, 1),
        ("float32", 1, 2),
    ],
)
@pytest.mark.parametrize("number", [0, 5, 22])
def test_a_log_probability_that_differs_by_a_bit_stops_the_update(
    tmp_path: Path, dtype: str, mini_batches: int, epochs: int, number: int
) -> None:
    """Whichever sample has it, and so whichever step would learn from it: no step is taken."""
    folder = make_model_folder(tmp_path / "model")
    spec = make_spec(
        exact="aligned",
        rollout={"engine": {"kind": "torch", "dtype": dtype}},
        trainer={"engine": {"kind": "torch", "ranks": 1, "dtype": dtype}},
        algorithm={"mini_batches": mini_batches, "epochs": epochs},
    )
    moved = with_a_bit_moved(sampled_rows(folder, dtype), number)
    engine = make_engine(spec, tmp_path, folder)
    before = weights_of(engine)
    with pytest.raises(AlignmentError, match=r"^iteration 1: .* differ from the sampler's by up to .* exact: aligned"):
        update(engine, write_shards(tmp_path, 1, moved))
    assert all((weights_of(engine)[name] == tensor).all() for name, tensor in before.items()), "nothing was learnt"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_measures_a_difference_of_exactly_0(tmp_path: Path, dtype: str) -> None:
    folder = make_model_folder(tmp_path / "model")
    spec = make_spec(
        exact="aligned",
        rollout={"engine": {"kind": "torch", "dtype": dtype}},
        trainer={"engine": {"kind": "torch", "ranks": 1, "dtype": dtype}},
        algorithm={"mini_batches": 2},
    )
    engine = make_engine(spec, tmp_path, folder)
    receipt = update(engine, write_shards(tmp_path, 1, sampled_rows(folder, dtype)))
    assert receipt.metrics["train_rollout_logprob_diff_max"] == 0.0
    assert receipt.metrics["tokens"] > 50


def aligned_over_two_ranks(mini_batches: int) -> RunSpec:
    return make_spec(
        exact="aligned",
        rollout={"engine": {"kind": "torch", "dtype": "bfloat16"}},
        trainer={"engine": {"kind": "torch", "ranks": 2, "dtype": "bfloat16"}},
        algorithm={"mini_batches": mini_batches},
    )


def sampled_task(place: Path, iteration: int, vocabulary: int, rows: list[dict[str, Any]]) -> BatchTask:
    return write_shards(place, iteration, rows)


@pytest.mark.verify
def test_each_rank_measures_a_difference_of_exactly_0(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    task = partial(sampled_task, rows=sampled_rows(folder, "bfloat16"))
    jobs = [Job(aligned_over_two_ranks(count), folder, (1,), make_task=task) for count in (1, 2)]
    for rank in run_ranks(2, jobs, tmp_path):
        for found in rank:
            (receipt,) = found.receipts
            assert receipt.metrics["train_rollout_logprob_diff_max"] == 0.0 and receipt.metrics["tokens"] > 50


@pytest.mark.verify
@pytest.mark.parametrize("mini_batches", [1, 2])
def test_a_bit_on_one_of_two_ranks_stops_the_update_of_both(tmp_path: Path, mini_batches: int) -> None:
    folder = make_model_folder(tmp_path / "model")
    task = partial(sampled_task, rows=with_a_bit_moved(sampled_rows(folder, "bfloat16"), 5))
    with pytest.raises(AssertionError):
        run_ranks(2, [Job(aligned_over_two_ranks(mini_batches), folder, (1,), make_task=task)], tmp_path)
    failures = [path.read_text() for path in sorted(tmp_path.glob("rank-*.failed"))]
    assert len(failures) == 2 and all("AlignmentError: iteration 1" in each for each in failures), failures


def test_a_trainer_without_kernels_of_its_own_is_refused(tmp_path: Path) -> None:
    from tests.models.folders import make_folder

    folder = make_folder(tmp_path / "model", "mistral")
    with pytest.raises(ConfigurationError, match=r"^exact: aligned needs a dense Llama or Qwen model .* mistral"):
        make_engine(make_spec(exact="aligned"), tmp_path, folder)
