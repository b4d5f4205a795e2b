"""Groups that dynamic sampling drops or adds as padding change no gradient, for any batch statistic or denominator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.train.support import (
    make_engine,
    make_model_folder,
    make_spec,
    prepare,
    random_rows,
    weights_of,
    write_shards,
)
from yatt_core.experience.admission import best_and_worst
from yatt_core.experience.prepared import read_prepared
from yatt_core.protocols.receipts import Admission, BatchTask

ADMITTED = (1, 4)
PADDING = (0, 5)
DROPPED = (2, 3)
ALGORITHMS: list[dict[str, Any]] = [
    {
        "aggregation": "token_mean",
        "advantage": {"kind": "batch_std"},
        "entropy": {"kind": "bonus", "coefficient": 0.01},
    },
    {"aggregation": "sequence_mean", "advantage": {"kind": "group_std"}, "kl": {"coefficient": 0.05}},
    {
        "aggregation": "fixed_length",
        "advantage": {"kind": "group_mean"},
        "kl": {"coefficient": 0.05, "where": "reward"},
    },
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"))


def varied_rows() -> list[dict[str, Any]]:
    """Returns rows whose rewards differ within every group, so that each group would count."""
    rows = random_rows(1, seed=4)
    for row in rows:
        row["reward"] = row["reward/exact"] = float((row["sample"] * 5 + row["prompt_ordinal"]) % 4) / 3
    return rows


def learned(folder: Path, model: Path, algorithm: dict[str, Any], task: BatchTask) -> tuple[dict[str, Any], Any]:
    """Returns the weights and metrics after one update."""
    engine = make_engine(make_spec(algorithm=algorithm), folder, model)
    engine.sft()
    receipt = engine.learn(task, prepare(engine, task))
    return weights_of(engine), receipt


def assert_same(one: tuple[dict[str, Any], Any], other: tuple[dict[str, Any], Any]) -> None:
    for name, array in one[0].items():
        np.testing.assert_allclose(other[0][name], array, atol=2e-6, rtol=0, err_msg=name)
    assert one[1].metrics["tokens"] == other[1].metrics["tokens"] > 0
    assert one[1].metrics["grad_norm"] == pytest.approx(other[1].metrics["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm["aggregation"])
def test_padding_and_dropped_groups_change_no_gradient(tmp_path: Path, model: Path, algorithm: dict[str, Any]) -> None:
    rows = varied_rows()
    alone = write_shards(tmp_path / "alone", 1, [row for row in rows if row["prompt_ordinal"] in ADMITTED])
    drawn = write_shards(tmp_path / "drawn", 1, rows)
    task = replace(drawn, admission=Admission(ADMITTED, PADDING))
    expected = learned(tmp_path / "alone", model, algorithm, alone)
    assert_same(expected, learned(tmp_path / "drawn", model, algorithm, task))
    everything = learned(tmp_path / "drawn", model, algorithm, drawn)
    assert max(float(np.abs(everything[0][name] - array).max()) for name, array in expected[0].items()) > 1e-4


def test_dropped_samples_change_no_gradient(tmp_path: Path, model: Path) -> None:
    rows = varied_rows()
    kept = []
    for ordinal in ADMITTED:
        group = [row for row in rows if row["prompt_ordinal"] == ordinal]
        kept += [group[i] for i in best_and_worst(np.array([row["reward"] for row in group]), 1)]
    alone = write_shards(tmp_path / "alone", 1, kept)
    task = replace(write_shards(tmp_path / "drawn", 1, rows), admission=Admission(ADMITTED, PADDING, keep=1))
    assert len(kept) == 4
    for algorithm in ALGORITHMS[:1]:
        assert_same(
            learned(tmp_path / "alone", model, algorithm, alone), learned(tmp_path / "drawn", model, algorithm, task)
        )


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_an_update_from_padding_alone_leaves_fresh_weights_unchanged(
    tmp_path: Path, model: Path, aggregation: str
) -> None:
    """Every group is masked, but the plan still has its steps."""
    task = replace(write_shards(tmp_path, 1, varied_rows()), admission=Admission((), tuple(range(6))))
    algorithm = {
        "aggregation": aggregation,
        "mini_batches": 2,
        "kl": {"coefficient": 0.05},
        "entropy": {"kind": "bonus", "coefficient": 0.01},
    }
    engine = make_engine(make_spec(algorithm=algorithm), tmp_path, model)
    before = weights_of(engine)
    prepared = prepare(engine, task)
    receipt = engine.learn(task, prepared)
    assert (receipt.version, receipt.metrics["tokens"], receipt.metrics["grad_norm"]) == (1, 0.0, 0.0)
    assert all((weights_of(engine)[name] == array).all() for name, array in before.items())
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert len(columns.advantages) == 24 and not columns.advantages.any()


def test_mini_batches_divide_the_target_whatever_was_admitted(tmp_path: Path, model: Path) -> None:
    """If two of four groups are padding, both steps are still taken, and the plan's digest shows each sample's step."""
    rows = varied_rows()
    task = replace(write_shards(tmp_path, 1, rows), admission=Admission(ADMITTED, PADDING))
    _, receipt = learned(tmp_path, model, {"mini_batches": 4}, task)
    counted = sum(sum(row["loss_mask"]) for row in rows if row["prompt_ordinal"] in ADMITTED)
    assert receipt.metrics["tokens"] == counted
    assert np.isfinite(receipt.metrics["loss"])
