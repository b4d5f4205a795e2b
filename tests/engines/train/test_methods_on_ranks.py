"""Every method on one, two and four real ranks of the trainer: the same updates, and more than one step in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.algorithms.methods import METHODS, Teachers
from tests.engines.train.groups import Found, Job, run_ranks
from tests.engines.train.support import make_model_folder, make_spec
from yatt_core.spec.presets import preset_tree
from yatt_core.spec.reading.layers import lay_over

pytestmark = pytest.mark.verify
NAMES = [name for name, method in METHODS.items() if method.lag is None and method.teaching != "self"]
ITERATIONS = (1, 2)


def job_of(name: str, ranks: int, model: Path, teachers: Teachers) -> Job:
    keys = METHODS[name].section(2, teachers)
    preset = keys.pop("preset", None)
    keys = {**(lay_over(preset_tree(preset), keys) if preset else keys), "epochs": 2, "mini_batches": 2}
    trainer: dict[str, Any] = {
        "engine": {"kind": "torch", "ranks": ranks, "micro_batch_tokens": (10_000, 60, 33)[ranks // 2]},
        "optimizer": {"learning_rate": 1e-3, "epsilon": 1e-4},
    }
    return Job(make_spec(algorithm=keys, trainer=trainer), model, ITERATIONS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Found]]:
    """Returns rank 0's results of all methods, by the number of ranks."""
    folder = tmp_path_factory.mktemp("methods")
    model = make_model_folder(folder / "model")
    teachers = Teachers(make_model_folder(folder / "early", 5), make_model_folder(folder / "late", 6))
    results = {}
    for ranks in (1, 2, 4):
        jobs = [job_of(name, ranks, model, teachers) for name in NAMES]
        (folder / str(ranks)).mkdir()
        results[ranks] = run_ranks(ranks, jobs, folder / str(ranks))[0]
    return results


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_the_same_on_any_ranks(name: str, found: dict[int, list[Found]]) -> None:
    one, *others = (found[ranks][NAMES.index(name)] for ranks in (1, 2, 4))
    assert one.receipts[-1].metrics.get("update/empty_steps", 0.0) < 4
    for other in others:
        for mine, theirs in zip(one.receipts, other.receipts, strict=True):
            assert theirs.fingerprint["plan"] != mine.fingerprint["plan"]
            for metric, value in mine.metrics.items():
                # Rounding moves a token or two over the edge of a clip.
                slack = 0.02 if metric.endswith("_fraction") else 1e-5
                assert theirs.metrics[metric] == pytest.approx(value, rel=1e-3, abs=slack), metric
        for tensor, array in one.weights.items():
            np.testing.assert_allclose(other.weights[tensor], array, atol=2e-6, rtol=0, err_msg=tensor)
