"""API keys of endpoints: resolved where they are used, and stored nowhere except in a request's header."""

from __future__ import annotations

from yatt_core.errors import ConfigurationError
from yatt_core.secret_references import BlockReader, resolve
from yatt_core.spec.rewards.judges import EndpointPart


def key_of(part: EndpointPart, read_block: BlockReader | None = None) -> str | None:
    """Returns the endpoint's key; None if the spec names none.

    Raises `ConfigurationError` if there is no valid key where the spec says.
    """
    if part.credential is None:
        return None
    place = f"rewards.parts {part.name!r}: credential"
    key = resolve(part.credential, place, read_block)
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{place}: {part.credential} does not hold a valid key (printable ASCII)")
    return key
