"""The driver's connection to the run's Ray head.

Ray reads its settings from this process's environment when it connects, so they are set here. Ray's output does
not go to the terminal: actors keep their own logs.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from yatt_core.cluster.background_calls import no_calls
from yatt_core.cluster.ray_head import ray_environment
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, InfrastructureError
from yatt_core.variables import set_variables

RETRY_SECONDS = 0.2
PROBE_SECONDS = 1.0
WITHOUT_MODULES = os.devnull
"""An entry for `sys.path` that holds no modules."""


def connect_ray(address: str, namespace: str, run_folder: Path | None = None, timeout: float = 30.0) -> None:
    """Connects this process to a head; named actors are looked up in the namespace.

    address: `host:port` from the supervisor's state.
    run_folder: the folder of the run that owns the head, for the token; None for an external cluster, whose
        settings are already in the environment.

    Raises `InfrastructureError` if nothing listens there within `timeout` seconds or Ray refuses the
    connection, `AwayError` if nothing listens at an external cluster's address, and `ConfigurationError` for an address of
    any other form.
    """
    if (silence := _await_listener(address, timeout)) is not None:
        said = f"nothing listens at the Ray head's address {address} after {timeout:g} s: {silence}"
        if run_folder is None:
            raise AwayError(f"the Ray cluster{IS_AWAY}{said}")
        raise InfrastructureError(said)
    import ray
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
    from ray.job_config import JobConfig

    # Ray warns that a thread cannot set signal handlers, which is intended here.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # The handlers of Ray's native code end the process on SIGTERM, but that is the driver's decision.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    if ray.is_initialized():
        disconnect_ray()
    if run_folder is not None:
        set_variables(ray_environment(run_folder))
        # Ray read this variable when it was imported; without it, Ray would replace 127.0.0.1 with the host's own
        # address.
        ray_constants.ENABLE_RAY_CLUSTER = False
    # Has processes import the classes of actors, as they import everything else. Otherwise Ray keeps the classes that a
    # job creates, and may forget them while actors of the job are alive: nobody new can then be told of these actors.
    imports = JobConfig(code_search_path=[WITHOUT_MODULES])
    # Ray keeps the settings and the token of this process's last connection.
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
    try:
        # In a separate thread: in the main thread, Ray would replace the process's own SIGTERM handler.
        with ThreadPoolExecutor(1, "connect-ray") as connecting:
            connecting.submit(
                ray.init,
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                logging_level="ERROR",
                job_config=imports,
            ).result()
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise InfrastructureError(f"cannot connect to the Ray head at {address}: {error}") from error


def disconnect_ray() -> None:
    """Disconnects from the head, whose detached actors continue to run; does nothing if there is no connection."""
    import ray

    with no_calls():
        ray.shutdown()


def _await_listener(address: str, timeout: float) -> OSError | None:
    """Waits until the head accepts connections; returns why it does not, if it does not in time.

    Ray itself would try for minutes to reach a head that is gone.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        raise ConfigurationError(f"Ray address {address!r}: expected host:port of the head, such as 127.0.0.1:6379")
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, int(port)), PROBE_SECONDS).close()
            return None
        except OSError as error:
            if time.monotonic() >= deadline:
                return error
            time.sleep(RETRY_SECONDS)
