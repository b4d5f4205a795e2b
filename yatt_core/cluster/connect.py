"""The driver's connection to the run's Ray head.

Ray reads its settings when it connects, from this process's environment, so they are set here, and nothing that Ray says
goes to the terminal: actors keep their own logs.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from yatt_core.cluster.ray_head import ray_environment
from yatt_core.errors import ConfigurationError, InfrastructureError

RETRY_SECONDS = 0.2
PROBE_SECONDS = 1.0


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

    # It warns that a thread cannot set signal handlers, which is what is wanted.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # The handlers of its native code end the process on SIGTERM, which a driver decides on itself.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
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
        # In a thread: in the main one, Ray puts a handler of SIGTERM in the place of the process's own.
        with ThreadPoolExecutor(1, "connect-ray") as connecting:
            connecting.submit(
                ray.init,
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                logging_level="ERROR",
            ).result()
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise InfrastructureError(f"cannot connect to the Ray head at {address}: {error}") from error


def disconnect_ray() -> None:
    """Leaves the head, which goes on with its detached actors; does nothing when there is no connection."""
    import ray

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
