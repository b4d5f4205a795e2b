"""How long a run takes here from the command until its work begins: as earlier starts of the home did, or an estimate.

Consumes the home, a spec and what was found out about its inputs. Starts nothing, creates no ledger.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.driver.attachment import attached
from flows.driver.warm_heads import obstacle_of
from flows.prefect_io.prefect_template import has_template
from flows.run.home import STARTS as TEMPLATES
from flows.run.home import Home
from flows.run.lending import free_cluster
from flows.run.starts import Machine, starts_like
from ops.preflight.home_folder import ledger_file
from ops.presentation.words import duration
from yatt_core.cluster.gpus import local_gpus
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError
from yatt_core.logs import redact
from yatt_core.planning.start import (
    PREFECT,
    RAY,
    WARM_RAY,
    StartEstimate,
    StartParts,
    actors_of,
    engines_of,
    estimate_start,
)
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec import RunSpec

MOST_STARTS = 5
"""The median is that of so many newest starts."""


@dataclass(frozen=True, slots=True)
class StartForecast:
    """How long a start takes.

    starts: the seconds of the newest starts like it, newest first.
    estimate: if there are none; None if nothing is known of the machines either.
    has_warm_head: whether the run takes over a warm Ray head of the service group.
    warnings: why earlier starts are not known.
    """

    starts: tuple[float, ...]
    estimate: StartEstimate | None
    has_warm_head: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The forecast; None if there is none."""
        if self.starts:
            return statistics.median(self.starts)
        return None if self.estimate is None else self.estimate.seconds

    @property
    def facts(self) -> dict[str, Any]:
        """The forecast as plain JSON values."""
        estimate = None if self.estimate is None else asdict(self.estimate)
        return {
            "seconds": self.seconds,
            "starts": list(self.starts),
            "estimate": estimate,
            "warm_head": self.has_warm_head,
        }

    @property
    def line(self) -> str:
        """The forecast in a sentence."""
        return f"{self._basis}{'; with a warm Ray head of the service group' if self.has_warm_head else ''}"

    @property
    def _basis(self) -> str:
        if self.seconds is None:
            return "start: not known: the cluster exists already, and the home has no start like it"
        about = f"start: about {duration(self.seconds)}"
        if len(self.starts) > 1:
            least = duration(min(self.starts))
            most = duration(max(self.starts))
            return f"{about} (median of the last {len(self.starts)} starts like it in this home: {least} to {most})"
        if self.estimate is None:
            return f"{about} (as the last start like it in this home)"
        cpu_seconds = sum(self.estimate.cpu_seconds.values())
        cores = many(self.estimate.cores, "core")
        missing = f"; {', '.join(self.estimate.not_counted)} not counted" if self.estimate.not_counted else ""
        return f"{about}, an estimate: {cpu_seconds:.0f} CPU seconds on {cores}, no start like it in this home{missing}"


def forecast_start(
    home: Home, spec: RunSpec, inputs: InputsReceipt, *, inputs_seconds: float, shares_server: bool
) -> StartForecast:
    """Returns how long `yatt train` takes with this spec, here and now, until its work begins.

    inputs: those that were built to be checked.
    inputs_seconds: CPU seconds that this took.
    shares_server: whether there is a Prefect server for it that runs share.
    """
    parts = StartParts(
        services=_services(home, spec, shares_server),
        engines=engines_of(spec),
        actors=actors_of(spec),
        parameters=inputs.parameters,
        prompts=inputs.prompts,
    )
    machine = Machine.this()
    warnings = list[str]()
    try:
        starts = _earlier_starts(home, machine, parts)
    except (LedgerError, ConfigurationError) as error:
        starts = ()
        warnings.append(f"earlier starts are not known: {redact(str(error))}")
    estimate = None
    if not starts:
        estimate = estimate_start(
            parts,
            machine.cores,
            inputs_seconds=inputs_seconds,
            has_gpus=bool(local_gpus()),
            has_template=has_template(home.folder / TEMPLATES),
        )
    return StartForecast(starts, estimate, parts.has_warm_head, tuple(warnings))


def _services(home: Home, spec: RunSpec, shares_server: bool) -> tuple[str, ...]:
    """Returns the services with which a run would start here and now, as its start is recorded."""
    if attached():
        return ()
    if not shares_server:
        return (RAY, PREFECT)
    warm = free_cluster(home)
    return (WARM_RAY,) if warm is not None and obstacle_of(warm, spec) is None else (RAY,)


def _earlier_starts(home: Home, machine: Machine, parts: StartParts) -> tuple[float, ...]:
    file = ledger_file(home)
    if file is not None and not file.exists():
        return ()
    with Ledger.open(home.ledger, migrate=False) as ledger:
        return tuple(starts_like(ledger, machine, parts, MOST_STARTS))
