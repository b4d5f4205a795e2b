"""What a run will need of this machine, in a few figures. Consumes a spec; `yatt plan` has the details."""

from __future__ import annotations

from dataclasses import dataclass

from ops.preflight.run import checkpoint_bytes, parameters
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class ResourceNeeds:
    """Predicted figures.

    parameters: of the policy; an estimate if the model does not exist yet.
    memory_bytes: of the fullest device, or of the node if engines run on its cores; None if unknown, as are the others.
    capacity_bytes: what this device or node has.
    seconds: duration of all iterations.
    """

    parameters: int
    checkpoint_bytes: int
    memory_bytes: int | None = None
    capacity_bytes: int | None = None
    seconds: float | None = None


def needs_of(spec: RunSpec) -> ResourceNeeds:
    """Returns what a run needs here.

    Memory and time are unknown for a virtual model, for a model of unknown shape, and for GPUs without a model card.
    """
    known = ResourceNeeds(parameters(spec), checkpoint_bytes(spec))
    if spec.virtual:
        return known
    from yatt_core.planning.assumptions import Assumptions
    from yatt_core.planning.cluster import local_cluster, read_cards
    from yatt_core.planning.plan import plan_run
    from yatt_core.planning.shape import UnknownShapeError

    try:
        cluster = local_cluster(read_cards())
    except ConfigurationError:
        return known
    try:
        made = plan_run(spec, cluster, Assumptions())
    except UnknownShapeError:
        return known
    fullest = max(made.demand.totals, key=lambda total: total.tensors + total.runtime)
    seconds = None if made.times is None else made.times.recommended.step_s * spec.iterations
    used = fullest.tensors + fullest.runtime
    return ResourceNeeds(
        parameters=known.parameters,
        checkpoint_bytes=known.checkpoint_bytes,
        memory_bytes=used,
        capacity_bytes=fullest.capacity,
        seconds=seconds,
    )
