"""Checks whether the available devices have enough memory for a run, before anything is loaded on them.

Consumes a spec and the cluster; produces how its roles share the memory. Raises `ConfigurationError` that reports
what is too large, by how much, and what would fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import GIB
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import DescribedCluster
from yatt_core.planning.memory.demand import Demand, demand_of
from yatt_core.planning.memory.remedies import remedies
from yatt_core.planning.roles import Roles, roles_of
from yatt_core.planning.shape import UnknownShapeError
from yatt_core.spec.run import RunSpec


def check_device_memory(spec: RunSpec, cluster: DescribedCluster) -> Demand | None:
    """Returns the run's demand; None for a model of unknown shape, whose memory cannot be computed.

    Raises `ConfigurationError` if the run does not fit.
    """
    assumed = Assumptions()
    try:
        roles = roles_of(spec, assumed)
    except UnknownShapeError:
        return None
    demand = demand_of(roles, cluster, assumed)
    if not demand.fits:
        raise ConfigurationError("\n".join(_lines(roles, demand, cluster, assumed)))
    return demand


def lag_obstacle(spec: RunSpec, demand: Demand, cluster: DescribedCluster) -> str:
    """Returns why nothing could be generated while the trainer learns; empty if it can, or need not."""
    if not spec.asynchrony.overlaps or demand.resident:
        return ""
    key, expected = ("streamed", "false") if spec.asynchrony.streamed else ("lag", "0")
    return (
        f"asynchrony.{key}: engines generate while the trainer learns, but {cluster} has no memory for both at once; "
        f"expected {expected}, "
        "more devices, or less memory for engines or trainer (`yatt plan` shows how much each role takes)"
    )


def _lines(roles: Roles, demand: Demand, cluster: DescribedCluster, assumed: Assumptions) -> Iterator[str]:
    yield f"the run does not fit on {cluster}:"
    for shortage in demand.shortages:
        yield f"{shortage.stage}: {shortage.bytes / GIB:.3g} GiB more than {shortage.where} has"
    for settings in remedies(roles, cluster, assumed):
        yield f"it would fit with {' '.join(f'--set {setting}' for setting in settings)}"
    yield "`yatt plan` shows how much each role takes"
