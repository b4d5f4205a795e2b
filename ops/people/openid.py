"""Sign-in with OpenID Connect: the authorization code flow with PKCE, state and nonce.

Consumes the provider's metadata and keys, and its answer to a sign-in that began here. Produces the address to which a browser
is sent, and the `Person` whom the provider has identified. Sign-ins that have begun are kept in memory, each for one use.
Specifications: OpenID Connect Core 1.0 (3.1), RFC 7636 (PKCE), RFC 9207 (`iss` in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import jwt

from ops.people.roles import Person
from ops.people.sign_in_settings import ProviderSettings, check_address
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import redact
from yatt_core.secret_references import BlockReader, resolve

log = logging.getLogger("yatt_core.dashboard")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that are accepted: those with a public key. `none`, and HMAC with a key that others know, are not among them."""
METADATA = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
LIFETIME_SECONDS = 600.0
LEEWAY_SECONDS = 30.0
ANSWER_SECONDS = 10.0
METADATA_SECONDS = 3600.0
PENDING = 1000
"""Maximum number of sign-ins that have begun; the oldest are dropped first."""
LONGEST_NAME = 100


class SignInRefused(ConfigurationError):
    """The provider's answer is not accepted, or gives the person no role."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in that has begun.

    address: the provider's page, to which the browser is sent.
    browser: a secret for this browser's cookie, without which the answer is not accepted.
    """

    address: str
    browser: str


@dataclass(frozen=True, slots=True)
class _Pending:
    nonce: str
    verifier: str
    redirect: str
    following: str
    browser_digest: str
    ends: float


class OpenIdProvider:
    """An OpenID Connect provider as its client sees it. Thread-safe.

    read_block: reads a Prefect block, for a client secret that is in one.
    clock: returns seconds that only grow.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        read_block: BlockReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._read_block = read_block
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._metadata: tuple[float, Mapping[str, Any], jwt.PyJWKClient] | None = None

    @property
    def title(self) -> str:
        """What the sign-in page calls it."""
        return self._settings.title

    def begin(self, redirect: str, following: str) -> Begun:
        """Begins a sign-in.

        redirect: the address of this dashboard to which the provider sends its answer.
        following: the page to show afterwards.

        Raises `InfrastructureError` if the provider does not answer.
        """
        metadata, _ = self._provider()
        state, browser, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        pending = _Pending(
            nonce=nonce,
            verifier=verifier,
            redirect=redirect,
            following=following,
            browser_digest=_digest(browser),
            ends=self._clock() + LIFETIME_SECONDS,
        )
        with self._lock:
            self._pending[state] = pending
            while len(self._pending) > PENDING:
                del self._pending[next(iter(self._pending))]
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(metadata["authorization_endpoint"])
        return Begun(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}", browser)

    def finish(self, answer: Mapping[str, str], browser: str) -> tuple[Person, str]:
        """Returns the person whom the provider's answer identifies, and the page to show next.

        browser: the value of the cookie that this browser got when the sign-in began.

        Raises `SignInRefused` if the answer is not accepted, `InfrastructureError` if the provider does not answer.
        """
        with self._lock:
            pending = self._pending.pop(answer.get("state", ""), None)
        if pending is None or self._clock() >= pending.ends:
            raise SignInRefused("this sign-in is unknown, was already used, or has taken too long; sign in again")
        if not hmac.compare_digest(_digest(browser), pending.browser_digest):
            raise SignInRefused("this sign-in began in another browser; sign in again")
        if answer.get("iss", self._settings.issuer) != self._settings.issuer:
            raise SignInRefused("the answer came from another provider than the one that was asked")
        if "error" in answer or not answer.get("code"):
            raise SignInRefused(f"the provider refused: {answer.get('error', 'no code')!r:.80}")
        tokens = self._exchange(answer["code"], pending)
        claims = self._verified(str(tokens.get("id_token", "")), pending.nonce)
        return self._person(self._completed(claims, tokens)), pending.following

    def _exchange(self, code: str, pending: _Pending) -> Mapping[str, Any]:
        """Returns the tokens for a code."""
        metadata, _ = self._provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect,
            "code_verifier": pending.verifier,
            "client_id": self._settings.client_id,
        }
        auth = None
        if self._settings.credential is not None:
            secret = resolve(self._settings.credential, "provider.credential", self._read_block)
            if "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
                auth = httpx.BasicAuth(*(_form_encoded(part) for part in (self._settings.client_id, secret)))
            else:
                form["client_secret"] = secret
        return self._asked("POST", str(metadata["token_endpoint"]), data=form, auth=auth)

    def _verified(self, token: str, nonce: str) -> dict[str, Any]:
        """Returns the claims of an ID token. Raises `SignInRefused` unless it was issued for this sign-in."""
        _, keys = self._provider()
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                _key_for(token, keys),
                algorithms=ALGORITHMS,
                audience=self._settings.client_id,
                issuer=self._settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except (jwt.PyJWKClientConnectionError, OSError, ValueError) as error:  # the last two: of reading the keys
            raise InfrastructureError(f"the provider's keys cannot be read: {redact(str(error))}") from None
        except jwt.PyJWTError as error:
            raise SignInRefused(f"the provider's ID token is not valid: {redact(str(error))}") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise SignInRefused("the provider's ID token is not valid: its nonce is not that of this sign-in")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise SignInRefused("the provider's ID token is not valid: it was issued to another client")
        return claims

    def _completed(self, claims: dict[str, Any], tokens: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the claims, with those of the provider's `userinfo` if the ID token lacks the name or the groups."""
        metadata, _ = self._provider()
        endpoint = metadata.get("userinfo_endpoint")
        token = tokens.get("access_token")
        roles = self._settings.roles
        needed = {self._settings.name_claim} | ({roles.claim} if roles.groups or roles.authors else set())
        if needed <= claims.keys() or not endpoint or not token:
            return claims
        more = self._asked("GET", str(endpoint), headers={"Authorization": f"Bearer {token}"})
        if more.get("sub") != claims["sub"]:
            raise SignInRefused("the provider's userinfo is about another person than its ID token")
        return {**more, **claims}

    def _person(self, claims: dict[str, Any]) -> Person:
        """Returns the person whom verified claims describe."""
        claim = self._settings.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise SignInRefused(f"the provider gives no usable {claim}, by which the audit chain would name you")
        verified = claims.get("email_verified", True)  # some providers say it in a string
        if claim == "email" and verified is not True and verified != "true":
            raise SignInRefused("the provider has not verified your e-mail address")
        role = self._settings.roles.role_of(claims)
        if role is None:
            raise SignInRefused(f"{name} has no role here: none of the groups in {self._settings.roles.claim} has one")
        return Person(name, role, self._settings.roles.is_author(claims))

    def _provider(self) -> tuple[Mapping[str, Any], jwt.PyJWKClient]:
        """Returns the provider's metadata and keys, cached for an hour."""
        known = self._metadata
        if known is not None and self._clock() < known[0]:
            return known[1], known[2]
        address = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        metadata = self._asked("GET", address)
        for name in METADATA:
            if not isinstance(metadata.get(name), str):
                raise InfrastructureError(f"{address}: {name} is missing")
        if metadata["issuer"] != self._settings.issuer:
            raise SignInRefused(f"{address}: its issuer is {metadata['issuer']!r:.200}, not that of the settings")
        try:
            for name in (*METADATA[1:], *({"userinfo_endpoint"} & metadata.keys())):
                check_address(name, str(metadata[name]).partition("?")[0])
        except ValueError as error:
            raise SignInRefused(f"{address}: {error}") from None
        keys = jwt.PyJWKClient(str(metadata["jwks_uri"]), timeout=ANSWER_SECONDS)
        self._metadata = (self._clock() + METADATA_SECONDS, metadata, keys)
        return metadata, keys

    def _asked(self, method: str, address: str, **more: Any) -> Mapping[str, Any]:
        """Returns the JSON object with which the provider answers. Raises `InfrastructureError` if it does not."""
        try:
            with httpx.Client(timeout=ANSWER_SECONDS, follow_redirects=False) as client:
                answered = client.request(
                    method, address, headers={"Accept": "application/json"} | more.pop("headers", {}), **more
                )
            document = answered.json()
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(
                f"the sign-in provider does not answer: {address}: {type(error).__name__}"
            ) from None
        if answered.is_client_error:
            said = document.get("error") if isinstance(document, dict) else None
            log.warning("the sign-in provider refused %s: %s %r", address, answered.status_code, said)
            raise SignInRefused(f"the provider refused the sign-in: {said!r:.80}")
        if not answered.is_success or not isinstance(document, dict):
            raise InfrastructureError(f"the sign-in provider does not answer: {address}: {answered.status_code}")
        return document


def _key_for(token: str, keys: jwt.PyJWKClient) -> jwt.PyJWK:
    """Returns the key that a token names, or the provider's only one. Raises `jwt.PyJWTError` if there is none."""
    name = jwt.get_unverified_header(token).get("kid")
    if name is not None:
        return keys.get_signing_key(name)
    (only, *others) = keys.get_signing_keys()
    if others:
        raise jwt.InvalidTokenError("it does not name its key")
    return only


def _form_encoded(text: str) -> str:
    """Returns a text in the form of RFC 6749, 2.3.1, for HTTP Basic."""
    return urlencode({"": text})[1:]


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
