"""Queries Ray's control store (GCS) for nodes and actors and stores values in it, with a time limit and YATT's errors.

Does not use `ray.nodes()` or its state accessor: if the head was restarted after this process connected, these
would end the whole process instead of raising. The functions here raise `InfrastructureError` if the store does
not answer or belongs to another cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.core.generated.gcs_pb2 import ActorTableData, GcsNodeInfo
from ray.exceptions import RayError

from yatt_core.cluster.background_calls import calling_ray
from yatt_core.errors import InfrastructureError

ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    """A live node.

    id: Ray's node id.
    name: the name set with `ray start --node-name`, else the host's name.
    address, port: where the node's raylet listens.
    """

    id: str
    name: str
    host: str
    address: str
    port: int
    resources: Mapping[str, float]

    @classmethod
    def of(cls, info: Any) -> Node:
        """Converts Ray's message. A node without a name of its own is named after its address."""
        given = str(info.node_name)
        host = str(info.node_manager_hostname)
        name = host if given == info.node_manager_address else given
        return cls(
            id=info.node_id.hex(),
            name=name,
            host=host,
            address=info.node_manager_address,
            port=info.node_manager_port,
            resources=dict(info.resources_total),
        )


def living_nodes() -> list[Node]:
    """Returns the live nodes of the connected cluster, sorted by id."""
    client = gcs_client()
    found = asked(lambda: client.get_all_node_info(timeout=ANSWER_SECONDS))
    return sorted(
        (Node.of(info) for info in found.values() if info.state == GcsNodeInfo.ALIVE), key=lambda node: node.id
    )


def node_of_actor(actor_id: str) -> str:
    """Returns Ray's id of the node that an actor is or was on; empty before the actor is placed."""
    return "".join(info.address.node_id.hex() for info in _actor_facts([actor_id]))


def place_of_actor(actor_id: str) -> tuple[str, int]:
    """Returns Ray's id of the node that an actor is on, and its process id; empty and 0 before it is placed."""
    for info in _actor_facts([actor_id]):
        return info.address.node_id.hex(), int(info.pid)
    return "", 0


def ended_actors(actor_ids: Sequence[str]) -> list[str]:
    """Returns the Ray ids of the actors that are permanently dead."""
    return [info.actor_id.hex() for info in _actor_facts(actor_ids) if info.state == ActorTableData.DEAD]


def _actor_facts(actor_ids: Sequence[str]) -> list[Any]:
    client = gcs_client()

    async def ask() -> list[Any]:
        found: list[Any] = []
        for actor_id in actor_ids:
            identifier = ray.ActorID.from_hex(actor_id)
            answer = await client.async_get_all_actor_info(actor_id=identifier, timeout=ANSWER_SECONDS)
            found += answer.values()
        return found

    # In a separate thread: the caller's thread may run an event loop.
    with ThreadPoolExecutor(1) as thread:
        facts: list[Any] = asked(lambda: thread.submit(asyncio.run, ask()).result())
    return facts


def remember(namespace: str, key: str, value: str) -> None:
    """Stores a string in the control store for the lifetime of the cluster."""
    client = gcs_client()
    asked(lambda: client.internal_kv_put(key.encode(), value.encode(), True, namespace.encode(), ANSWER_SECONDS))


def recall(namespace: str, key: str) -> str:
    """Returns the string last stored under a key; empty if there is none."""
    client = gcs_client()
    found: bytes | None = asked(lambda: client.internal_kv_get(key.encode(), namespace.encode(), ANSWER_SECONDS))
    return (found or b"").decode()


def gcs_client() -> Any:
    """Returns the client of the connected cluster's control store. Raises `InfrastructureError` if there is none."""
    return _connected("gcs_client")


def own_namespace() -> str:
    """Returns the Ray namespace in which this process looks up actors. Raises `InfrastructureError` if it is not connected."""
    with calling_ray():  # Ray ends the whole process that asks for this while another thread disconnects
        return str(_connected("core_worker").get_job_config().ray_namespace)


def _connected(part: str) -> Any:
    """Returns a part of this process's connection. Raises `InfrastructureError` if there is none."""
    worker: Any = ray._private.worker.global_worker
    # Ray calls a process initialised before it has a worker, and another thread may be connecting or disconnecting.
    found = getattr(worker, part, None) if hasattr(worker, "core_worker") else None
    if found is None:
        raise InfrastructureError("this process is not connected to Ray")
    return found


def asked(question: Callable[[], Any]) -> Any:
    """Returns the answer to a question to the control store. Raises `InfrastructureError` if it does not answer."""
    try:
        return question()
    except RayError as error:
        raise InfrastructureError(f"Ray's control store does not answer: {' '.join(str(error).split())}") from error
