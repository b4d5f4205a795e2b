"""How people sign in to the dashboard: whether reading needs it, and the OpenID Connect provider.

Consumes `sign-in.yaml` in the home folder; produces `SignInSettings`. Raises `ConfigurationError` with a line per mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from ops.people.roles import Role, lesser
from yatt_core.errors import ConfigurationError
from yatt_core.secret_references import SecretReference
from yatt_core.section import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model

FILE = "sign-in.yaml"
REQUIRED_VARIABLE = "YATT_REQUIRE_SIGN_IN"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RoleRules(SpecModel):
    """Which role a person has, by the provider's claims."""

    claim: str = Field(default="groups", min_length=1)
    """The claim with the person's groups: a list of texts, or one text."""
    groups: dict[str, Role] = Field(default_factory=dict)
    """The role of each group; a person in several groups has the most powerful of their roles."""
    default: Role | None = None
    """The role of everyone else; `null`: they cannot sign in."""
    authors: tuple[str, ...] = ()
    """The groups whose members may also author: name code, files, addresses and secrets in specs."""

    def role_of(self, claims: dict[str, Any]) -> Role | None:
        """Returns the role that claims give; None if they give none."""
        roles = [self.groups[group] for group in self._groups_of(claims) if group in self.groups]
        best = self.default
        for role in roles:
            best = role if best is None or lesser(best, role) is best else best
        return best

    def is_author(self, claims: dict[str, Any]) -> bool:
        """Returns True if claims name a group that may author."""
        return not set(self.authors).isdisjoint(self._groups_of(claims))

    def _groups_of(self, claims: dict[str, Any]) -> list[str]:
        given = claims.get(self.claim, ())
        groups = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        return [group for group in groups if isinstance(group, str)]


class ProviderSettings(SpecModel):
    """An OpenID Connect provider, and this dashboard as its client."""

    title: str = Field(default="single sign-on", min_length=1, max_length=60)
    """What the button of the sign-in page calls it."""
    issuer: str
    """The provider's issuer identifier, an https URL; its metadata are read from `/.well-known/openid-configuration` below."""
    client_id: str = Field(min_length=1)
    """The dashboard's identifier at the provider."""
    credential: SecretReference | None = None
    """Where the client's secret is; `null` for a public client, which has PKCE alone."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """The scopes to ask for; some providers need one more for groups."""
    name_claim: str = Field(default="email", min_length=1)
    """The claim with the name that the audit chain records. It should not be one that people can choose themselves."""
    roles: RoleRules = RoleRules()

    @field_validator("issuer")
    @classmethod
    def _safe_issuer(cls, issuer: str) -> str:
        check_address("issuer", issuer)
        return issuer

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes or any(not scope.isascii() or len(scope.split()) != 1 for scope in scopes):
            raise ValueError("expected words, among them openid")
        return scopes

    @model_validator(mode="after")
    def _someone_may(self) -> ProviderSettings:
        if not self.roles.groups and self.roles.default is None:
            raise ValueError("roles: expected groups or a default, since nobody could sign in otherwise")
        return self


class SignInSettings(SpecModel):
    """The settings of `sign-in.yaml`."""

    required: bool = False
    """Whether even reading needs sign-in."""
    provider: ProviderSettings | None = None
    """The OpenID Connect provider; `null`: people sign in with tokens only."""


def check_address(key: str, address: str) -> None:
    """Raises `ValueError` unless an address of the provider is https, or http on loopback, without a password or query."""
    parts = urlsplit(address)
    encrypted = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not encrypted or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"{key}: {address!r:.200} is not an https URL without user, query and fragment")


def read_settings(folder: Path) -> SignInSettings:
    """Returns the settings of a home folder; the defaults if it has no file."""
    path = folder / FILE
    if not path.exists():
        return SignInSettings()
    return parse_model(SignInSettings, read_document(path), str(path))


def is_sign_in_required(environment: Mapping[str, str]) -> bool:
    """Returns True if the environment says that even reading needs sign-in.

    Raises `ConfigurationError` for a value that is neither yes nor no.
    """
    given = environment.get(REQUIRED_VARIABLE, "").strip().lower()
    if given not in ("", "0", "1", "false", "true", "no", "yes"):
        raise ConfigurationError(f"{REQUIRED_VARIABLE}: expected 1 or 0 (given: {given!r:.20})")
    return given in ("1", "true", "yes")
