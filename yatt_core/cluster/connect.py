"""The driver's connection to the run's Ray head.

Ray reads its settings when it connects, from this process's environment, so they are set here, and nothing that Ray says
goes to the terminal: actors keep their own logs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yatt_core.cluster.ray_head import ray_environment
from yatt_core.errors import ConfigurationError, InfrastructureError

RETRY_SECONDS = 0.2
PROBE_SECONDS = 1.0
KEEP_SECONDS = 0.001
SIGACTION_BYTES = 256
"""More than a `struct sigaction` takes on any Linux."""


def connect_ray(address: str, namespace: str, run_folder: Path | None = None, timeout: float = 30.0) -> None:
    """Connects this process to a head; named actors are found in the namespace.

    address: `host:port` from the supervisor's state. run_folder: of the run that owns the head, for the token; none for
    a cluster of the surroundings, whose settings are in the environment already. Raises `InfrastructureError` when nothing
    listens there within `timeout` seconds, or Ray refuses; `ConfigurationError` for an address of another form.
    """
    _wait_for_listener(address, timeout)
    import ray
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    # It warns that a thread cannot set signal handlers, which the driver does for itself.
    logging.getLogger("ray").setLevel(logging.ERROR)
    if ray.is_initialized():
        disconnect_ray()
    if run_folder is not None:
        os.environ.update(ray_environment(run_folder))
        # Ray read this variable when it was imported; without it, it would replace 127.0.0.1 by the host's own address.
        ray_constants.ENABLE_RAY_CLUSTER = False
    # Ray keeps the settings and the token of this process's last connection.
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
    try:
        with _own_sigterm():
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                logging_level="ERROR",
            )
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise InfrastructureError(f"cannot connect to the Ray head at {address}: {error}") from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keeps the process's handler of SIGTERM: Ray puts one in its place that ends the process, and takes away any when it leaves.

    By the C library, since Python knows nothing of Ray's handlers, and lets the main thread alone set its own. Again and again,
    since Ray takes seconds behind that to connect.
    """
    library, kept, over = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES), threading.Event()

    def keep() -> None:
        while not over.wait(KEEP_SECONDS):
            library.sigaction(signal.SIGTERM, kept, None)

    library.sigaction(signal.SIGTERM, None, kept)
    keeper = threading.Thread(target=keep, daemon=True, name="own-sigterm")
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
        library.sigaction(signal.SIGTERM, kept, None)


def disconnect_ray() -> None:
    """Leaves the head, which goes on with its detached actors; does nothing when there is no connection."""
    import ray

    with _own_sigterm():
        ray.shutdown()


def _wait_for_listener(address: str, timeout: float) -> None:
    """Ray itself tries for minutes to reach a head that is gone."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        raise ConfigurationError(f"Ray address {address!r}: write host:port of the head, such as 127.0.0.1:6379")
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, int(port)), PROBE_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise InfrastructureError(
                    f"nothing listens at the Ray head's address {address} after {timeout:g} s: {error}"
                ) from error
            time.sleep(RETRY_SECONDS)
