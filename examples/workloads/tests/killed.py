"""Runs that are killed, or continued by another number of ranks, beside undisturbed ones; for the tests of each workload."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from flows.reports.audit import verify_run
from tests.workloads.in_process import OwnRun
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, PromptRef, RowsTask
from yatt_core.spec import RunSpec, load_spec
from yatt_core.workloads.inputs import materialise_workload

SHORT = ("iterations=4", "checkpoints.every=2", "evaluation.every=2")
KILLED_AT = (
    "start:0", "evaluate:0", "commit_start:0", "prepare:1", "after prepare:1", "learn:2", "after learn:2", "checkpoint:2",
    "after checkpoint:2", "after prepare:3", "commit:3", "recover:2", "after learn:4", "after evaluate:4",
)  # fmt: skip


def both_ways(folder: Path, spec: Path, changes: Sequence[str], places: Sequence[str]) -> None:
    """Asserts that a run killed at the places gives the bits of an undisturbed one. Every other time its rank dies too."""
    torch.set_num_threads(1)
    undisturbed = OwnRun.of(folder / "undisturbed", spec, *SHORT, *changes)
    undisturbed.drive()
    struck = OwnRun.of(folder / "struck", spec, *SHORT, *changes)
    reached = [place for number, place in enumerate(places) if struck.drive(place, cold=number % 2 == 1) is None]
    outcome = struck.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"
    assert reached == list(places)
    found = struck.results()
    expected = undisturbed.results()
    assert found.weights_digest == expected.weights_digest is not None
    assert found.metrics_digest == expected.metrics_digest is not None
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
    assert report.sound, report.disagreement


class Together:
    """The engines of several ranks, in threads."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._ranks = spec.trainer.engine.ranks
        self._meeting = threading.Barrier(self._ranks, timeout=60)
        self._address = hold_address(LOOPBACK)
        self._prepared: dict[int, PrepareReceipt] = {}
        self._inputs = folder / materialise_workload(spec, folder).folder

    def run(self, begin: Path | None, first: int, last: int, saved: Path) -> list[tuple[str, dict[str, float]]]:
        """Learns iterations, from a saved state or from the start, and saves. Returns each rank's digest and figures."""
        saved.mkdir()

        def rank(number: int) -> tuple[str, dict[str, float]]:
            engine = build_train_engine(self._spec, RankContext(self._folder, self._inputs, "", 0))
            engine.connect(number, self._ranks, self._address)
            if begin is None:
                engine.initialise()
            else:
                engine.restore(begin, first - 1)
            for iteration in range(first, last + 1):
                self._learn(engine, iteration)
            engine.freeze_state()(saved)
            self._meeting.wait()
            figures = engine.evaluate(RowsTask(WorkKey("tried", 0, last, "evaluate"), 1)).metrics
            return engine.weights_digest(), dict(figures)

        with ThreadPoolExecutor(self._ranks) as threads:
            return list(threads.map(rank, range(self._ranks)))

    def _learn(self, engine: TrainEngine, iteration: int) -> None:
        receipt = engine.prepare(_task("prepare", iteration))
        if receipt is not None:
            self._prepared[iteration] = receipt
        self._meeting.wait()
        engine.learn(_task("learn", iteration), self._prepared[iteration])


def _task(phase: str, iteration: int) -> BatchTask:
    number = iteration - 1
    return BatchTask(WorkKey("tried", 0, iteration, phase), 1, (), rows=(PromptRef(number, 0, number),))


def resumed_on_another_number(folder: Path, spec: Path, changes: Sequence[str], ranks: tuple[int, int]) -> None:
    """Asserts that another number of ranks takes over the same bits and finds the same figures in them, and goes on as the first
    would but for rounding.
    """
    torch.set_num_threads(1)
    specs = [load_spec(spec, [*SHORT, *changes, f"trainer.engine.ranks={count}"]) for count in ranks]
    first, other = (Together(folder / str(count), each) for count, each in zip(ranks, specs, strict=True))
    saved = folder / "saved"
    (before, *_) = first.run(None, 1, 2, saved)
    taken = other.run(saved, 3, 2, folder / "again")
    assert taken == [before] * ranks[1], "the same bits on each rank, and the same figures"
    stayed = first.run(saved, 3, 3, folder / "stayed")
    moved = other.run(saved, 3, 3, folder / "moved")
    assert len({digest for digest, _ in stayed}) == len({digest for digest, _ in moved}) == 1
    for name, value in stayed[0][1].items():
        assert abs(moved[0][1][name] - value) < 0.05, name
