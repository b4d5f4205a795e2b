"""API keys of endpoints: resolved where they are used, and stored nowhere except in a request's header."""

from __future__ import annotations

from yatt_core.errors import ConfigurationError
from yatt_core.secret_references import BlockReader, resolve
from yatt_core.spec.rewards.addresses import FallbackEndpoint
from yatt_core.spec.rewards.judges import EndpointPart


def key_of(part: EndpointPart, endpoint: FallbackEndpoint, read_block: BlockReader | None = None) -> str | None:
    """Returns the key of one of a part's endpoints; None if the spec names none.

    Raises `ConfigurationError` if there is no valid key where the spec says.
    """
    if endpoint.credential is None:
        return None
    place = f"rewards.parts {part.name!r}: credential"
    key = resolve(endpoint.credential, place, read_block)
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{place}: {endpoint.credential} does not hold a valid key (printable ASCII)")
    return key
