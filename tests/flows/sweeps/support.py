"""Sweeps whose runs are simulated: a driver that writes commits and checkpoints, and accuracies that follow from the settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from db.write.metrics import Metric
from flows.members.driving import Drives, Goals
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.sweeps.record import PROMOTION, SWEEP, TRIAL, VALUE, WINNER, SweepRecord, create_sweep
from flows.sweeps.runner import SweepRunner
from flows.sweeps.spec import parse_sweep
from tests.flows.soups.support import RUN as SOUP_RUN
from tests.flows.soups.support import Killed, drive_run
from yatt_core.input_building.materialise import materialise
from yatt_core.spec import RunSpec, parse_spec

RUN: dict[str, Any] = {**SOUP_RUN, "name": "swept", "iterations": 32, "evaluation": {"every": 2}}
RATE = "trainer.optimizer.learning_rate"
TEMPERATURE = "rollout.temperature"
SWEEP_TREE: dict[str, Any] = {
    "base": "run.yaml",
    "space": {RATE: {"low": 1e-5, "high": 1e-1, "log": True}, TEMPERATURE: {"values": [0.6, 0.8, 1.0]}},
    "asha": {"reduction": 4},
    "trials": 8,
    "workers": 3,
}
LINKS = (SWEEP.kind, TRIAL, PROMOTION, VALUE, WINNER)


def accuracy(spec: RunSpec, iteration: int) -> float:
    """Returns an accuracy that rises with the iterations, is best at a rate of 1e-3, and depends a little on the seed."""
    wrong = abs(log10(spec.trainer.optimizer.learning_rate) + 3) / 2 + abs(spec.rollout.temperature - 0.8)
    return max(0.0, 1 - wrong / 2) * iteration / (iteration + 4) + 0.001 * random.Random(spec.seed).random()


def measured(spec: RunSpec, iteration: int) -> Sequence[Metric]:
    due = iteration % spec.evaluation.every == 0 or iteration == spec.iterations
    return [Metric("evaluation/accuracy", accuracy(spec, iteration))] if due else []


@dataclass
class Lab:
    """A home with one sweep.

    inputs: inputs of a run of `RUN`.
    killed_at: number of the driver's call in which the process is killed, before it has an effect.
    order: returns the run that is driven next, of several goals.
    """

    home: Home
    sweep: str
    inputs: Path
    killed_at: int = -1
    order: Callable[[list[str]], str] = min
    calls: int = 0
    driven: list[tuple[str, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, inputs: Path, **changes: Any) -> Lab:
        home = Home(folder)
        sweep = parse_sweep({**SWEEP_TREE, **changes}, "sweep")
        return cls(home, create_sweep(home, sweep, parse_spec(RUN, "run"), "ann"), inputs)

    def run(self, drive: Drives | None = None) -> None:
        with Ledger.open(self.home.ledger) as ledger:
            SweepRunner(self.home, ledger, self.sweep, drive or self.drive, self.said.append).run()

    def drive(self, goals: Goals) -> None:
        """Drives one run at a time, as an order says, and asks for the goals after each."""
        while left := goals():
            self.calls += 1
            if self.calls == self.killed_at:
                raise Killed
            run = self.order(list(left))
            self.driven.append((run, left[run]))
            self.make_inputs(run)
            drive_run(self, run, left[run], measured)

    def make_inputs(self, run: str) -> None:
        """Makes the inputs of a start for which the shared ones are not meant."""
        with Ledger.open(self.home.ledger) as ledger:
            spec = current_spec(ledger, run)
            iteration = ledger.runs.find(run).iteration
        if iteration < 0 and (spec.seed, spec.model) != (0, parse_spec(RUN, "run").model):
            materialise(spec, self.home.run_folder(run))

    def chain(self) -> list[tuple[str, Any]]:
        """Returns the sweep's links, in order."""
        with Ledger.open(self.home.ledger) as ledger:
            assert ledger.events.verify(self.sweep) is None
            return [(link.kind, link.body) for link in ledger.events.links(self.sweep) if link.kind in LINKS]

    def record(self, ledger: Ledger) -> SweepRecord:
        return SweepRecord.of(ledger, self.sweep)

    def specs(self) -> dict[str, RunSpec]:
        """Returns the specs of all runs, by what they are."""
        with Ledger.open(self.home.ledger) as ledger:
            return {name: current_spec(ledger, row.id) for name, row in self.record(ledger).members().items()}
