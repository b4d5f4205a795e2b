"""What is said of the server that Prefect's client is set to, where it does not answer or refuses.

Consumes what the client raises; produces words without credentials. Imports prefect: only once its server's address is in the
environment (`flows.prefect_io.prefect_server.use_server`).
"""

from __future__ import annotations

from httpx import HTTPError, TransportError
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL

from flows.prefect_io.prefect_server import PREFECT_VARIABLE, shown
from yatt_core.logs import redact

AWAY = (HTTPError, PrefectException)
"""What is raised while Prefect's server does not answer."""


def server_trouble(error: Exception) -> str:
    """Which server it is and what is wrong with it, for what goes on without it."""
    return redact(f"Prefect's server at {shown(PREFECT_API_URL.value() or '')}: {type(error).__name__}: {error}")


def server_needed(error: Exception) -> str:
    """The same for what cannot go on without it, with what would be right where it does not answer."""
    right = f"; right would be one that runs: `yatt up` starts it, {PREFECT_VARIABLE} names another"
    return server_trouble(error) + (right if isinstance(error, TransportError) else "")
