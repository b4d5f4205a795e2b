"""The Prefect server that commands about deployments speak to.

Consumes the home, whose service group may have one, and the environment; produces the settings of Prefect's client.
"""

from __future__ import annotations

from flows.run.home import Home
from yatt_core.errors import ConfigurationError


def connect_to_server(home: Home, wanted: bool) -> None:
    """Points Prefect's client at the server, before prefect is imported.

    wanted: False if only a file is written, for which no server is needed.

    Raises `ConfigurationError` if a server is needed and none is known.
    """
    from flows.prefect_io.prefect_server import use_server
    from ops.group.address import NOWHERE, shared_server

    server = shared_server(home)
    if server is None and wanted:
        raise ConfigurationError(
            "no Prefect server is known: start one with `yatt up`, set $PREFECT_API_URL, or write the deployment to a file "
            "with --file prefect.yaml"
        )
    use_server(home.group, server.address if server else NOWHERE, server.password if server else None)
