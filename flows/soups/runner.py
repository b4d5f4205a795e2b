"""Carries a soup from where it stands to its end: creates its runs, has them driven, merges and measures models.

Consumes a soup's record, something that drives runs, and something that measures weights. Produces forks of the supervised run,
and links of its audit chain. It may be killed at any line: the next one asks the plan again, and repeats at most the measurement
that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from db.core.engine import Fence
from db.ledger import Ledger
from flows.files.storage import store_of, verify_kept
from flows.members.alone import driving_alone
from flows.members.driving import Drives, Tell, ended_early, goals_of
from flows.members.tags import whole_fork
from flows.run.home import Home
from flows.run.lease import LeaseKeeper, operator_lease
from flows.soups.merging import MergedWeights
from flows.soups.mixing import mixing_matrix
from flows.soups.outcome import merge_terms
from flows.soups.plan import REWARDED, Choose, Measure, PointKey, SoupMember, Supervise, Train
from flows.soups.record import SOUP, SoupRecord
from yatt_core.checkpoints.contents import WEIGHTS, open_tensors
from yatt_core.code_files import fetch_code
from yatt_core.counting import many
from yatt_core.digests import ordered_weights_digest
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import Tensors
from yatt_core.spec import RunSpec
from yatt_core.storage.lacking import fetch_lacking
from yatt_core.wire.part_files import PartFiles


class ModelMeter(Protocol):
    """Measures weights: returns the mean value of each function of the reward."""

    def measure(self, weights: Tensors) -> Mapping[str, float]: ...


OpenMeter = Callable[[RunSpec, str, Path, int], ModelMeter]
"""Opens a meter for a spec, a run's id and folder, and a number of responses to each prompt."""


class SoupRunner:
    """Drives one soup.

    tell: called with each step, for people.
    """

    def __init__(self, home: Home, ledger: Ledger, soup: str, drive: Drives, open_meter: OpenMeter, tell: Tell) -> None:
        self._home = home
        self._ledger = ledger
        self._record = SoupRecord.of(ledger, soup)
        self._drive = drive
        self._open_meter = open_meter
        self._tell = tell
        self._meter: ModelMeter | None = None

    def run(self) -> None:
        """Takes all steps that are left.

        Raises `InfrastructureError` for a run that ends early, `DrivenElsewhereError` if another command drives this
        soup, and what the meter raises.
        """
        with driving_alone(self._home, self._ledger, SOUP, self._record.name) as lease:
            self._take_all(lease)

    def _take_all(self, lease: LeaseKeeper) -> None:
        """Takes all steps; decisions and measurements carry the soup's lease."""
        record = self._record
        while (step := record.plan.next_step(record.facts())) is not None:
            lease.check()
            match step:
                case Supervise():
                    self._tell(f"{record.name}: making the supervised model")
                    self._drive_to([record.name], 0)
                case Train(members, until):
                    runs = [self._member(member) for member in members]
                    self._tell(f"{record.name}: training {', '.join(runs)} to iteration {until}")
                    self._drive_to(runs, until)
                case Measure():
                    self._measure(lease.fence, step)
                case Choose(beta, hypervolumes):
                    with operator_lease(self._ledger, record.name, f"yatt soup of {record.name}"):
                        if record.facts().chosen is None:
                            record.choose(lease.fence, beta, hypervolumes)
                    self._tell(f"{record.name}: beta is {beta:g}")

    def _drive_to(self, runs: Sequence[str], until: int) -> None:
        goals = goals_of(self._ledger, runs, until)
        name = self._record.name
        self._drive(goals)
        for run in goals():
            said = ended_early(self._ledger, run, until)
            raise InfrastructureError(f"soup {name}: {said}; `yatt soup resume {name}` goes on")

    def _member(self, member: SoupMember) -> str:
        """Returns the run of a member, which is created, or its creation finished, if need be."""
        record = self._record
        spec = record.spec
        row = mixing_matrix(len(spec.objectives), member.beta)[member.objective]
        changes = [*spec.mixed_weights(record.run_spec, row), *SOUP.tags(record.name, member.name(spec))]
        return whole_fork(
            home=self._home, ledger=self._ledger, run=record.members().get(member), start=record.name, overrides=changes
        )

    def _measure(self, fence: Fence, step: Measure) -> None:
        record = self._record
        stage = step.points[0].stage
        beta = step.points[0].beta
        self._tell(f"{record.name}: measuring {many(len(step.points), 'merged model')} ({stage}, beta {beta:g})")
        runs = record.members()
        places = [*((runs[member], step.iteration) for member in record.plan.members(beta)), (record.name, 0)]
        with operator_lease(self._ledger, record.name, f"yatt soup of {record.name}"):
            done = record.facts().points
            models = [self._weights(run, iteration) for run, iteration in places]
            for key in step.points:
                if key not in done:
                    record.add_point(fence, key, *self._measured(key, models))

    def _measured(self, key: PointKey, models: Sequence[PartFiles]) -> tuple[list[float], Mapping[str, Any]]:
        """Merges and measures one model; returns its rewards, and what else is recorded of it.

        models: those of the members, and at the end the supervised one.
        """
        record = self._record
        alpha = 0.0 if key.stage == REWARDED else record.spec.extrapolation
        preference = record.plan.grid.preferences[key.preference]
        own, supervised = merge_terms(preference, key.beta, alpha)
        merged = MergedWeights(models, [*own, supervised]) if alpha else MergedWeights(models[:-1], own)
        tensors = {name: merged.read(name) for name in sorted(merged.shapes)}
        values = self._open().measure(tensors)
        scales = zip(record.spec.objectives, record.spec.scales(record.run_spec), strict=True)
        return [scale * values[name] for name, scale in scales], {
            "preference": list(preference),
            "coefficients": own,
            "supervised": supervised,
            "weights_digest": ordered_weights_digest(tensors.items()),
            "values": dict(values),
        }

    def _open(self) -> ModelMeter:
        if self._meter is None:
            record = self._record
            folder = self._home.run_folder(record.name)
            fetch_code(record.run_spec, folder, store_of(self._ledger, record.name, folder))
            self._meter = self._open_meter(record.run_spec, record.name, folder, record.spec.samples_per_prompt)
        return self._meter

    def _weights(self, run: str, iteration: int) -> PartFiles:
        """Returns the weights of a run's checkpoint, fetched and verified."""
        row = self._record.checkpoint(run, iteration)
        folder = self._home.run_folder(run)
        store = store_of(self._ledger, run, folder)
        fetch_lacking(store, folder, [row])
        verify_kept(store, folder, row)
        return open_tensors(folder / row.folder, WEIGHTS)
