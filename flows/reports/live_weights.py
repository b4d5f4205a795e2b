"""Compares the weights that the live actors of a run hold with each other and with the run's ledger.

Consumes the ledger, the run's folder, and the cluster on which its driver works. Changes nothing, and waits for actors
that are busy, so the driver may be at work meanwhile. The comparison is repeated while new weights are on their way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from db.ledger import Ledger
from flows.driver.attachment import RAY_VARIABLE, attached
from flows.driver.services import ray_namespace
from flows.run.creation import current_spec
from flows.run.shared_cluster import services_folder
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.control_store import RayControlStore
from yatt_core.cluster.driver_signs import newest_term
from yatt_core.cluster.metering import BytesMeter, metered_get
from yatt_core.cluster.ray_head import SERVICE_NAME
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.run_actors.actor_registry import TRAINER
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.weight_check import Actors, EngineWeights, WeightComparison, compare_weights
from yatt_core.spec import RunSpec
from yatt_core.supervisor.client import current_state

PAUSE_SECONDS = 1.0
REPLICATED = ("torch", "virtual")
"""Trainers of which each rank can compute the digest of all weights alone."""


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """The result.

    version: version of the weights.
    trainer: `weights_digest` of the trainer's weights; None if its ranks hold one model together.
    committed: the one in the ledger; None if the version is not committed yet, or its commit has none.
    engines: what was found about each engine.
    """

    run: str
    version: int
    trainer: str | None
    committed: str | None
    engines: tuple[EngineWeights, ...]

    @property
    def sound(self) -> bool:
        """True if nothing differs."""
        differs = None not in (self.trainer, self.committed) and self.trainer != self.committed
        return not differs and not any(engine.differing for engine in self.engines)


def audit_weights(ledger: Ledger, run: str, folder: Path, patience: float) -> WeightsReport:
    """Compares the live actors' weights.

    patience: seconds to wait for actors that are busy, and for engines that do not hold the trainer's version yet.

    Raises `ConfigurationError` if the run has no live actors, `InfrastructureError` if they do not answer in time.
    """
    spec = current_spec(ledger, run)
    deadline = time.monotonic() + patience
    with live_actors(ledger, run, folder) as (ranks, engines, term):

        def ask(references: list[Any], what: str, names: list[str]) -> list[Any]:
            return metered_get(BytesMeter(), references, max(1.0, deadline - time.monotonic()), what)

        while True:
            found = compare_weights(ask, term, ranks, engines)
            if found.settled and (found.trainer_version or 0) >= 0:
                return _report(ledger=ledger, run=run, spec=spec, found=found, ranks=ranks, term=term, ask=ask)
            if time.monotonic() > deadline:
                held = {engine.name: engine.version for engine in found.engines}
                raise InfrastructureError(
                    f"run {run}: trainer and engines did not hold the same version within {patience:g} s (trainer"
                    f" {found.trainer_version}, engines {held}); try again once new weights have been sent"
                )
            time.sleep(PAUSE_SECONDS)


def _report(
    ledger: Ledger, run: str, spec: RunSpec, found: WeightComparison, ranks: Actors, term: int, ask: Any
) -> WeightsReport:
    version = int(found.trainer_version or 0)
    own = None
    if spec.trainer.engine.kind in REPLICATED:
        name, first = next(iter(ranks.items()))
        asked = [first.weights_digest.remote(term, version)]
        own = str(ask(asked, "the digest of the trainer's weights", [name])[0])
    commit = ledger.commits.at(run, version)
    return WeightsReport(
        run=run,
        version=version,
        trainer=own,
        committed=None if commit is None else commit.weights_digest,
        engines=found.engines,
    )


@contextmanager
def live_actors(ledger: Ledger, run: str, folder: Path) -> Iterator[tuple[Actors, Actors, int]]:
    """Provides the run's ranks and engines, and the term under which they may be called; changes no term.

    Raises `ConfigurationError` if the run has no live actors.
    """
    with _connected(run, ray_namespace(ledger, run), folder):
        ranks, engines = _live(run, current_spec(ledger, run))
        yield ranks, engines, newest_term(RayControlStore())


@contextmanager
def _connected(run: str, namespace: str, folder: Path) -> Iterator[None]:
    """Connects to the cluster of a run. Raises `ConfigurationError` if there is none."""
    services = services_folder(folder)
    state = None if attached() else current_state(services)
    try:
        if attached():
            connect_ray(os.environ[RAY_VARIABLE], namespace)
        elif state is not None and state.service(SERVICE_NAME).address:
            connect_ray(state.service(SERVICE_NAME).address, namespace, services)
        else:
            raise ConfigurationError(
                f"run {run}: no actors are alive, because nothing drives it; `yatt resume {run}` starts them"
            )
        yield
    finally:
        disconnect_ray()


def _live(run: str, spec: RunSpec) -> tuple[Actors, Actors]:
    """Returns the ranks and engines that are alive. Raises `ConfigurationError` unless all of them are."""
    handles: dict[str, Any] = {}
    for registered in ray.util.list_named_actors():
        handles[registered.rpartition(".")[0]] = ray.get_actor(registered)
    counts = {TRAINER: spec.trainer.engine.ranks, ROLLOUT: spec.engine_instances}
    names = {role: [f"{role}-{number}" for number in range(count)] for role, count in counts.items()}
    if missing := [name for each in names.values() for name in each if name not in handles]:
        raise ConfigurationError(
            f"run {run}: {', '.join(missing)} is not alive; `yatt resume {run}` starts it if nothing drives the run, else try "
            "again once it is under way"
        )
    ranks, engines = ({name: handles[name] for name in names[role]} for role in (TRAINER, ROLLOUT))
    return ranks, engines
