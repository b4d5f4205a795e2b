"""Keys of endpoints: they come from the environment, and nothing but a request's header ever holds one."""

from __future__ import annotations

import os

from yatt_core.errors import ConfigurationError
from yatt_core.spec.rewards.judges import EndpointPart


def key_of(part: EndpointPart) -> str | None:
    """The endpoint's key; None where the spec names no variable. Raises `ConfigurationError` where the variable has none."""
    if part.api_key_env is None:
        return None
    key = os.environ.get(part.api_key_env, "").strip()
    if not key:
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: api_key_env: the environment variable {part.api_key_env} is not set; set it to the "
            "endpoint's key, or leave api_key_env out"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"rewards.parts {part.name!r}: api_key_env: {part.api_key_env} holds no key that can be sent"
        )
    return key
