"""Where a third-party judge is: the address and the key of an endpoint, and the prices of its tokens."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, NonNegativeFloat, model_validator

from yatt_core.naming import Names
from yatt_core.secret_references import SecretReference
from yatt_core.spec.base import SpecModel

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def safe_address(url: str) -> str:
    """Returns a base URL without a slash at its end. Raises `ValueError` for one that is none, or holds a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or not url.isprintable() or " " in url:
        raise ValueError("expected https://host/path")
    if parts.port == 0:  # reading a port that is not a number, or too large, raises
        raise ValueError("port 0 is not valid")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL must not contain a password; put the key into an environment variable or a file and name that in "
            "credential"
        )
    if parts.query or parts.fragment:
        raise ValueError("expected the base URL only, without ? or #")
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(safe_address)]


def check_encrypted(url: str, allow_http: bool) -> None:
    """Raises `ValueError` for an address that sends texts to another machine unencrypted, unless that is allowed."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not allow_http:
        raise ValueError(f"url {url} is not encrypted; use https:// or set allow_http: true")


class FallbackEndpoint(SpecModel):
    """Another endpoint that serves the same model under the same name."""

    url: Annotated[BaseUrl, Names("url")]
    """Base URL of its API."""
    credential: Annotated[SecretReference | None, Names("secret")] = None
    """Where its API key is; `null`: no key is sent. The key of another endpoint is never sent to it."""
    allow_http: bool = False
    """Allow prompts and responses to be sent unencrypted to another machine."""

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        check_encrypted(self.url, self.allow_http)
        return self


class TokenPrices(SpecModel):
    """What an endpoint charges, per million tokens, in the currency of the price file."""

    prompt: NonNegativeFloat = Field(le=1e9)
    """Price of a million tokens of prompts."""
    completion: NonNegativeFloat = Field(le=1e9)
    """Price of a million tokens of answers."""

    def cost_of(self, prompt_tokens: int, tokens: int) -> float:
        """Returns the price of an answer."""
        return (self.prompt * prompt_tokens + self.completion * tokens) / 1e6


def _is_host(name: str | None) -> bool:
    """Returns True if a name can be looked up, that is if none of its labels is empty or too long."""
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False
