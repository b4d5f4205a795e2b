"""Which nodes of the Ray cluster that the environment names share the home folder.

Consumes the home folder and the spec; asks each node. Starts no cluster, and leaves nothing behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from yatt_core.spec import RunSpec

SECONDS = 60.0
NAMESPACE = "yatt-check"


def check_disks(home: Path, spec: RunSpec) -> dict[str, str] | None:
    """Returns the name of the node that each node shares the home folder's disk with; None if no cluster is named.

    Raises `ConfigurationError` if nodes do not share it and the spec has no object store, `InfrastructureError` if the
    cluster does not answer.
    """
    from flows.driver.attachment import RAY_VARIABLE, attached

    if not attached():
        return None
    from yatt_core.cluster.connect import connect_ray, disconnect_ray
    from yatt_core.cluster.disks import require_one_disk, survey
    from yatt_core.cluster.nodes import own_node_name

    connect_ray(os.environ[RAY_VARIABLE], NAMESPACE)
    try:
        found = survey(home.absolute(), SECONDS)
        here = own_node_name()
    finally:
        disconnect_ray()
    require_one_disk(home, found, here, spec.storage.url)
    return found
