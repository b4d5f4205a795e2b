"""Two real ranks in two processes (this one is rank 0): equal bits, the numbers of one rank, shared failures."""

from __future__ import annotations

import multiprocessing
import pickle
import re
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.letters import letters_engine, letters_spec
from tests.engines.train.support import random_task, weights_of
from yatt_core.engines.train.ranks import collective, time_limits
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import ConfigurationError, InfrastructureError, NumericError
from yatt_core.experience.prepared import read_prepared
from yatt_core.protocols.receipts import BatchTask

ITERATIONS = 3
SFT = {"max_steps": 6, "probe_every": 3}
EPSILON = 1e-3
"""Of Adam; large beside the round-off of a gradient, which the optimizer otherwise divides by the gradient itself."""


def learn_all(engine: TorchTrainEngine, tasks: list[BatchTask], peer: Connection | None) -> dict[str, Any]:
    """Runs SFT and an update for each task.

    peer: the other rank, which receives or sends what `prepare` returned.
    """
    sft = engine.sft()
    prepared = []
    updates = []
    for task in tasks:
        receipt = engine.prepare(task)
        if peer is not None and receipt is not None:
            peer.send(receipt)
        elif peer is not None:
            receipt = peer.recv()
        assert receipt is not None
        prepared.append(receipt)
        updates.append(engine.learn(task, receipt))
    weights = weights_of(engine)
    return {"sft": sft, "updates": updates, "prepared": prepared, "weights": weights}


def run_rank(rank: int, address: str, folder: Path, tasks: list[BatchTask], peer: Connection) -> None:
    """Runs one rank: learns, then fails together with the other because of bad weights on rank 1."""
    engine = letters_engine(letters_spec(folder, ranks=2, epsilon=EPSILON, **SFT), folder)
    engine.connect(rank, 2, address)
    engine.initialise()
    result = learn_all(engine, tasks, peer)
    if rank == 1:
        engine.policy.optimizer.values.detach().fill_(torch.nan)
    again = replace(tasks[-1], key=replace(tasks[-1].key, iteration=ITERATIONS + 1))
    try:
        engine.learn(again, result["prepared"][-1])
    except NumericError as error:
        result["error"] = (str(error), engine.version)
    (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(result))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of ranks 0 and 1, and of a single rank on the same experience."""
    folder = tmp_path_factory.mktemp("ranks")
    address = hold_address()
    single = letters_engine(letters_spec(folder, epsilon=EPSILON, **SFT), folder)
    tasks = [random_task(folder, iteration, vocabulary=8) for iteration in range(1, ITERATIONS + 1)]
    methods = multiprocessing.get_context("spawn")
    here, there = methods.Pipe()
    worker = methods.Process(target=run_rank, args=(1, address, folder, tasks, there))
    worker.start()
    run_rank(0, address, folder, tasks, here)
    worker.join(60)
    assert worker.exitcode == 0
    ranks = [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in (0, 1)]
    columns = [read_prepared(folder, receipt.folder, receipt.files) for receipt in ranks[0]["prepared"]]
    single.connect(0, 1, "")
    single.initialise()
    return {"ranks": ranks, "columns": columns, "single": learn_all(single, tasks, None)}


def test_ranks_hold_the_same_bits_and_give_the_same_receipts(group: dict[str, Any]) -> None:
    first, second = group["ranks"]
    for name, array in first["weights"].items():
        np.testing.assert_array_equal(array, second["weights"][name])
    for mine, other in zip(first["updates"], second["updates"], strict=True):
        assert mine.fingerprint == other.fingerprint
        assert mine.metrics == other.metrics
    assert first["sft"].weights_digest == second["sft"].weights_digest


TOLERANCE = 1e-5
"""A thousandth of an optimizer step, which moves a weight by up to the learning rate of 1e-2. Sums in another order differ by
rounding errors, which the optimizer divides by small gradients; how large they get depends on the processor's instructions."""


def test_two_ranks_learn_what_one_rank_learns(group: dict[str, Any]) -> None:
    double = group["ranks"][0]
    single = group["single"]
    assert double["sft"].probe_accuracy == single["sft"].probe_accuracy
    for name, array in single["weights"].items():
        np.testing.assert_allclose(double["weights"][name], array, atol=TOLERANCE, rtol=0)
    for mine, other in zip(double["updates"], single["updates"], strict=True):
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6)
        assert mine.fingerprint["plan"] != other.fingerprint["plan"]


def test_each_rank_writes_the_columns_that_it_computed(group: dict[str, Any]) -> None:
    for receipt, columns in zip(group["ranks"][0]["prepared"], group["columns"], strict=True):
        assert sorted(receipt.files) == ["rank-00.parquet", "rank-01.parquet"]
        assert len(columns.advantages) == 24
        assert columns.log_probs_old is not None
        assert columns.log_probs_ref is not None
    assert group["ranks"][0]["prepared"][1].metrics["kl"] == pytest.approx(
        group["single"]["prepared"][1].metrics["kl"], rel=1e-4
    )


def test_a_rank_with_bad_weights_stops_all_before_the_step(group: dict[str, Any]) -> None:
    for result in group["ranks"]:
        message, version = result["error"]
        assert re.search(r"(loss|norm) (nan|inf)\b", message)
        assert version == ITERATIONS


def test_a_group_that_nobody_joins_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "BASE_SECONDS", 0.5)
    lonely = collective.Collective()
    with pytest.raises(InfrastructureError, match=r"rank 1 of 2 .*tcp://"):
        lonely.connect(1, 2, "tcp://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="tcp://host:port"):
        lonely.connect(1, 2, "127.0.0.1:9")
    engine = letters_engine(letters_spec(tmp_path, ranks=2), tmp_path)
    with pytest.raises(ConfigurationError, match=r"\b3 ranks.*trainer\.engine\.ranks is 2"):
        engine.connect(0, 3, "tcp://127.0.0.1:9")
    engine.initialise()
    with pytest.raises(InfrastructureError, match="2 ranks"):
        engine.sft()
