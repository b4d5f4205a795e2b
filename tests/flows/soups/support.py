"""Soups whose runs are simulated: a driver that writes commits and checkpoints, and rewards that follow from the weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.numpy

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from db.write.commit import IterationCommit
from db.write.metrics import Metric
from db.write.records import CheckpointRow
from flows.gates.waiting import waiting_reason
from flows.members.driving import Drives, Goals
from flows.run.control_state import ControlState
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.soups.record import create_soup
from flows.soups.runner import SoupRunner
from flows.soups.spec import parse_soup
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.digests import weights_digest
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import checkpoint_folder
from yatt_core.protocols.engines import Tensors
from yatt_core.spec import RunSpec, parse_spec

RUN: dict[str, Any] = {
    "name": "brew",
    "iterations": 10,
    "model": {
        "hidden_size": 8,
        "layers": 1,
        "heads": 1,
        "key_value_heads": 1,
        "intermediate_size": 8,
        "max_positions": 128,
    },
    "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 40}], "held_out": 5},
    "rollout": {"max_new_tokens": 8},
    "rewards": {
        "parts": [
            {"name": "exact", "function": "exact_match", "weight": 0.5},
            {"name": "brief", "function": "length_range", "options": {"maximum": 3}, "weight": 2.0},
            {"name": "long", "function": "length_range", "options": {"minimum": 6, "maximum": 9}},
        ]
    },
    "tracking": {"enabled": False},
}
SOUP: dict[str, Any] = {
    "name": "brew",
    "base": "run.yaml",
    "objectives": ["brief", "long"],
    "betas": [0.6, 0.8],
    "grid_points": 3,
}


Measured = Callable[[RunSpec, int], Sequence[Metric]]
"""The metrics of a simulated run at an iteration."""


class Killed(Exception):
    """The process that carries the soup is gone."""


@dataclass
class Kitchen:
    """A home with one soup.

    inputs: inputs of a run of `RUN`.
    killed_at: number of the call (of the driver or the meter) in which the process is killed, before it has an effect.
    """

    home: Home
    soup: str
    inputs: Path
    killed_at: int = -1
    calls: int = 0
    driven: list[tuple[str, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, inputs: Path, **changes: Any) -> Kitchen:
        home = Home(folder)
        return cls(
            home, create_soup(home, parse_soup({**SOUP, **changes}, "soup"), parse_spec(RUN, "run"), "ann"), inputs
        )

    def cook(self, drive: Drives | None = None) -> None:
        with Ledger.open(self.home.ledger) as ledger:
            SoupRunner(self.home, ledger, self.soup, drive or self.drive, lambda *_: self, self.said.append).run()

    def drive(self, goals: Goals) -> None:
        for run, until in goals().items():
            self._call()
            self.driven.append((run, until))
            drive_run(self, run, until)

    def measure(self, weights: Tensors) -> Mapping[str, float]:
        """Returns the square roots of the objectives' shares in the weights."""
        self._call()
        shares = np.maximum(weights["mix"], 0.0)
        return {"exact": 0.0, "brief": float(np.sqrt(shares[0])), "long": float(np.sqrt(shares[1]))}

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.killed_at:
            raise Killed


class Place(Protocol):
    """A home, and the inputs of its runs."""

    home: Home
    inputs: Path


def nothing_measured(spec: RunSpec, iteration: int) -> Sequence[Metric]:
    return ()


def drive_run(
    kitchen: Place, run: str, until: int, measured: Measured = nothing_measured, *, killed: bool = False
) -> None:
    """Commits a run's iterations up to one, and takes its checkpoint there.

    killed: whether the driver is killed between the two.
    """
    with Ledger.open(kitchen.home.ledger) as ledger:
        spec = current_spec(ledger, run)
        folder = kitchen.home.run_folder(run)
        fence = ledger.leases.acquire(run, this_process(f"yatt driver of {run}"), 600)
        if not (folder / INPUTS).exists():
            shutil.copytree(kitchen.inputs, folder / INPUTS)
        for iteration in range(ledger.runs.find(run).iteration + 1, until + 1):
            state = replace(ControlState.initial(spec.data), iteration=iteration)
            digest = weights_digest(weights_of(spec, iteration))
            metrics = measured(spec, iteration)
            commit = IterationCommit(0, iteration, state.to_json(), 1, weights_digest=digest, metrics=metrics)
            ledger.commits.commit(fence, commit)
        if not killed:
            take_checkpoint(ledger, fence, spec, folder, until)
            ledger.runs.set_state(fence, "stopped")
        ledger.leases.release(fence)


def ask_on_the_way(kitchen: Place, run: str, until: int, *, kind: str = "iterations", pauses: bool = True) -> None:
    """Ends a run before its first iteration with an open question; it is paused for that reason, or has failed."""
    with Ledger.open(kitchen.home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process(f"yatt driver of {run}"), 600)
        approval = ledger.approvals.ask(ApprovalRequest(run, kind, kind, "go on?", run))
        state, reason = ("paused", waiting_reason(approval)) if pauses else ("failed", "the disk is full")
        ledger.runs.set_state(fence, state, reason)
        ledger.leases.release(fence)


def take_checkpoint(ledger: Ledger, fence: Fence, spec: RunSpec, folder: Path, iteration: int) -> None:
    weights = weights_of(spec, iteration)

    def write(target: Path) -> None:
        for subfolder, tensors in (("weights", weights), ("optimizer", {"moment": np.zeros(2, np.float32)})):
            (target / subfolder).mkdir()
            safetensors.numpy.save_file(tensors, target / subfolder / "rank-00000-of-00001.safetensors")

    name = str(checkpoint_folder(0, iteration, fence.term))
    identity = CheckpointIdentity(fence.run, 0, iteration, fence.term, spec.digest, weights_digest(weights))
    receipt = publish_checkpoint(folder, name, identity, write, 1000)
    row = CheckpointRow(
        fence.run, 0, iteration, fence.term, name, receipt.manifest_sha256, receipt.bytes, receipt.weights_digest, 0.0
    )
    ledger.records.checkpoint(fence, row)


def weights_of(spec: RunSpec, iteration: int) -> dict[str, Any]:
    """Returns weights that approach a run's mixed rewards, relative to the scales of the objectives."""
    brief = spec.rewards.parts[1].weight / 2.0
    long = spec.rewards.parts[2].weight
    mix = np.array([brief, long], np.float32) * np.float32(iteration / 10)
    return {"mix": mix, "norm": np.ones(3, np.float32)}
