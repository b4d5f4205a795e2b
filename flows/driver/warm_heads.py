"""Whether a warm Ray head of the service group suits a run. A run's driver asks that, and so does `yatt check`.

Consumes a spec, and what the group says of a head. Produces the head that the run needs, and what keeps it from taking over the
other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.run.lending import HeadNeeds, Reply
from flows.run.shared_environment import differing, environment_digests
from yatt_core.cluster.ray_head import SERVICE_NAME, head_covers, ray_head_service, store_bytes
from yatt_core.code_revision import code_revision
from yatt_core.engines.ahead import data_modules, torch_modules
from yatt_core.spec import RunSpec
from yatt_core.supervisor.client import served_request
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import SupervisorRequest


def needs_of(spec: RunSpec) -> HeadNeeds:
    """Returns what a run needs of a head."""
    return HeadNeeds(
        modules=data_modules(spec),
        torch_modules=torch_modules(spec),
        store_bytes=store_bytes(spec),
    )


def head_of(spec: RunSpec, folder: Path) -> ServiceSpec:
    """Returns the head that a run would start in a folder."""
    needs = needs_of(spec)
    return ray_head_service(
        folder,
        object_store_bytes=needs.store_bytes,
        modules=needs.modules,
        torch_modules=needs.torch_modules,
    )


def obstacle_of(head: Reply, spec: RunSpec, others: Sequence[ServiceSpec] = ()) -> str | None:
    """Returns why a warm head does not suit a run; None if it does.

    others: services that the run needs beside the head.
    """
    names = differing(head.environment, environment_digests())
    if names:
        return f"that of the service group has another environment ({', '.join(names)})"
    folder = Path(head.folder)
    served = served_request(folder)
    if served is None:  # the head was killed; another one starts there
        return None
    needed = SupervisorRequest((head_of(spec, folder), *others), spec.recovery.grace_seconds, code_revision())
    if served.revision != needed.revision:
        return "that of the service group runs other code; restart the group with `yatt down` and `yatt up`"
    return None if covers(served, needed) else "that of the service group is for other runs"


def covers(served: SupervisorRequest, needed: SupervisorRequest) -> bool:
    """Returns True if the services of a shared cluster, which are up, will do for a run that needs some.

    They may wait longer for a driver, and there may be others beside them.
    """
    if (
        served.revision != needed.revision
        or served.grace is None
        or needed.grace is None
        or served.grace < needed.grace
    ):
        return False
    found = {service.name: service for service in served.services}
    return all(
        (service := found.get(asked.name)) is not None
        and (head_covers(service, asked) if asked.name == SERVICE_NAME else service == asked)
        for asked in needed.services
    )
