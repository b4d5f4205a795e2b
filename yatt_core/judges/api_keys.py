"""API keys of endpoints: read from the environment, and stored nowhere except in a request's header."""

from __future__ import annotations

import os

from yatt_core.errors import ConfigurationError
from yatt_core.spec.rewards.judges import EndpointPart


def key_of(part: EndpointPart) -> str | None:
    """Returns the endpoint's key; None if the spec names no variable.

    Raises `ConfigurationError` if the variable is not set to a valid key.
    """
    if part.api_key_env is None:
        return None
    key = os.environ.get(part.api_key_env, "").strip()
    if not key:
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: api_key_env: the environment variable {part.api_key_env} is not set; set "
            "it to the endpoint's key, or leave api_key_env out"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: api_key_env: {part.api_key_env} does not hold a valid key (printable ASCII)"
        )
    return key
