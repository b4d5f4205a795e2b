"""Reads secrets from blocks of the Prefect server that runs share.

Consumes a block's name and the server that the environment names; produces the value, which only the caller holds.
"""

from __future__ import annotations

from typing import Any

from flows.prefect_io.prefect_server import PREFECT_VARIABLE, named_server
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import keep_secret
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import EndpointPart


def read_block(name: str) -> str:
    """Returns the value of a `Secret` block.

    Raises `ConfigurationError` if the environment names no server or there is no such block, `InfrastructureError` if the
    server does not answer.
    """
    if named_server() is None:
        raise ConfigurationError(
            f"the Prefect block {name} is on a server that runs share, and {PREFECT_VARIABLE} names none"
        )
    import httpx
    from prefect.blocks.system import Secret

    try:
        block: Any = Secret.load(name)  # in a process without an event loop of its own
    except ValueError:
        raise ConfigurationError(
            f"there is no Prefect block secret/{name}; create it in Prefect's UI, or with `prefect block create secret`"
        ) from None
    except httpx.HTTPError as error:
        raise InfrastructureError(f"the Prefect block {name} cannot be read: {type(error).__name__}") from None
    return str(block.get())


def blocks_of(spec: RunSpec) -> dict[str, str]:
    """Returns the values of the blocks that a spec's judges need, for actors, which have no Prefect client.

    They are passed in calls, and so stand in no environment, file or table. Raises what `read_block` raises.
    """
    parts = (part for part in spec.rewards.judges if isinstance(part, EndpointPart))
    keys = (endpoint.credential for part in parts for endpoint in part.endpoints)
    names = sorted({key.prefect_block for key in keys if key is not None and key.prefect_block is not None})
    found = {name: read_block(name) for name in names}
    for value in found.values():
        keep_secret(value.strip())
    return found
