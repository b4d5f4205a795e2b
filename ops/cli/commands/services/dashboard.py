"""`yatt dashboard`: serves the pages, API and metrics of a home folder, on the loopback interface only."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from flows.run.home import Home
from ops.cli.commands.services.group import DASHBOARD_PORT
from ops.preflight.home_folder import check_folder
from ops.presentation.output import message, write_json
from ops.process import keep_caches_inside
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ConfigurationError

app = typer.Typer()

HOST = "127.0.0.1"
STOP_SECONDS = 3
"""Time that a shutdown waits for open requests, since streams of live updates never end by themselves."""
LEAVE_SECONDS = 2.0
"""Time that the end of the process waits for threads of abandoned requests."""


@app.command(
    epilog=examples("yatt dashboard", "yatt dashboard --port 9000", "yatt --home /data/runs dashboard --port 0 -o json")
)
def dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")] = DASHBOARD_PORT,
    require_sign_in: Annotated[
        bool, typer.Option("--require-sign-in", help="Require sign-in for reading too; also YATT_REQUIRE_SIGN_IN=1.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Serve the dashboard until Ctrl-C: web pages, a JSON API under /api/v1, and /metrics for Prometheus.

    Reading needs no sign-in unless it is required; changing a run needs a role, by a token (`yatt token create NAME`) or
    through the OpenID Connect provider of sign-in.yaml.
    """
    import uvicorn

    from ops.dashboard.app import create_app
    from ops.group.address import shared_server
    from ops.group.pages import live_pages

    place = Home.locate(home)
    if not place.folder.exists():
        check_folder(place.folder)
    keep_caches_inside(place)
    with socket.socket() as listener:
        _bind(listener, port)
        app = create_app(place, partial(live_pages, place), require_sign_in, partial(shared_server, place))
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        if output is Output.JSON:
            write_json({"address": address, "home": str(place.folder)})
            sys.stdout.flush()
        else:
            message(f"dashboard of {place.folder}: {address}")
        config = uvicorn.Config(
            app, log_level="warning", server_header=False, proxy_headers=False, timeout_graceful_shutdown=STOP_SECONDS
        )
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
            uvicorn.Server(config).run([listener])
    leave()


def _is_news(record: logging.LogRecord) -> bool:
    """Returns False for what uvicorn logs, with a traceback, about requests that a shutdown does not wait for."""
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and "graceful shutdown exceeded" not in record.getMessage()


def leave() -> None:
    """Ends the process if a thread still works for a request, such as a check that calls slow reward functions.

    Threads cannot be cancelled, and Python would wait for them.
    """
    busy = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in busy:
        thread.join(LEAVE_SECONDS / len(busy))
    if any(thread.is_alive() for thread in busy):
        message("the dashboard ends; a request that was in progress is abandoned")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _bind(listener: socket.socket, port: int) -> None:
    """Binds the socket and starts listening. Raises `ConfigurationError` if the port is taken."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # clients that connect before the server is ready wait instead of being refused
    except OSError as error:
        raise ConfigurationError(f"--port {port}: cannot listen: {error.strerror}; choose a free port") from None
