"""`yatt dashboard`: serves pages, API and metrics of a home folder, on loopback alone."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.options import HomeOption, examples, keep_caches_inside
from ops.cli.output import message

HOST, PORT = "127.0.0.1", 8686
STOP_SECONDS = 3


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=examples("yatt dashboard", "yatt dashboard --port 9000", "yatt --home /data/runs dashboard"))(
        dashboard
    )


def dashboard(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = PORT, home: HomeOption = None
) -> None:
    """Serve the dashboard until Ctrl-C: pages for people, /api/v1 for programs, /metrics for Prometheus.

    Reading needs no token; what changes a run needs one of `yatt token create NAME`.
    """
    import socket

    import uvicorn

    from flows.home import Home
    from ops.dashboard.app import create_app
    from yatt_core.errors import ConfigurationError

    place = Home.locate(home)
    keep_caches_inside(place)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"--port {port}: cannot be listened on: {error.strerror}; another program may have it"
            ) from None
        app = create_app(place)
        message(f"the dashboard of {place.folder}: http://{HOST}:{port}/")
        # Streams of live updates never end by themselves.
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=STOP_SECONDS)
        uvicorn.Server(config).run([listener])
