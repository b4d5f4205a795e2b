"""The campaign's tool: a calculator that a service over HTTP is asked for.

Consumes an expression. Produces what the service answers. Raises `InfrastructureError` if the service gives no answer, and
`ValueError` if it says that the expression has no value.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request

from yatt_core.errors import InfrastructureError

ADDRESS = "YATT_OUTSIDE_TOOL"
"""The environment variable with the service's address."""
SECONDS = 4.0


def calculate(expression: str) -> str:
    """Returns the value of an arithmetic expression."""
    body = json.dumps({"expression": expression}).encode()
    request = urllib.request.Request(os.environ[ADDRESS], data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            told = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise InfrastructureError(f"the calculator's service answers with status {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InfrastructureError(f"the calculator's service does not answer ({type(error).__name__})") from None
    if "error" in told:
        raise ValueError(told["error"])
    return str(told["value"])
