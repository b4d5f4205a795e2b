"""A real OpenID Connect provider on loopback: Authlib's authorization server, with PKCE, nonces and a registered client.

Consumes the people whom it knows; produces a server with discovery, keys, a sign-in form, tokens and userinfo. `forge` lets a
test replace the ID token as a hostile or broken provider would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import flask
import jwt
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import AuthorizationCodeMixin, UserInfo
from authlib.oidc.core.grants import OpenIDCode
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

CLIENT_ID = "yatt"
CLIENT_SECRET = "s3cret-of-the-client"
FORM = "<form method=post><input name=who aria-label=Name><button>Allow</button></form>"


@dataclass
class Code(AuthorizationCodeMixin):
    """An authorization code that was given out."""

    code: str
    redirect_uri: str
    scope: str
    nonce: str
    user: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())


@dataclass
class Client(ClientMixin):
    """The registered client."""

    redirects: tuple[str, ...]

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> str:
        return self.redirects[0]

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirects

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class Provider:
    """A running provider.

    people: the claims of each person, by name.
    in_userinfo: claims that only userinfo contains.
    forge: returns another ID token in place of the right one, which it gets as claims.
    metadata: changes to the discovery document.
    """

    people: dict[str, dict[str, Any]]
    redirects: tuple[str, ...]
    in_userinfo: frozenset[str] = frozenset()
    forge: Callable[[dict[str, Any]], str] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    issuer: str = ""
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    def signed(self, claims: dict[str, Any], **changes: Any) -> str:
        """Returns an ID token with the provider's own signature."""
        return jwt.encode({**claims, **changes}, self.key, "RS256", headers={"kid": "1"})

    def app(self) -> flask.Flask:
        """Builds the server."""
        app = flask.Flask("provider")
        server = AuthorizationServer(
            app, lambda name: Client(self.redirects) if name == CLIENT_ID else None, self._keep
        )
        server.register_grant(_grant(self), [CodeChallenge(required=True), _id_tokens(self)])

        @app.get("/.well-known/openid-configuration")
        def discovery() -> Any:
            places = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in ("token", "userinfo")}
            places |= {"authorization_endpoint": f"{self.issuer}/authorize", "jwks_uri": f"{self.issuer}/keys"}
            return {"issuer": self.issuer, **places, **self.metadata}

        @app.get("/keys")
        def keys() -> Any:
            return {"keys": [{**self._jwk().as_dict(private=False), "use": "sig", "alg": "RS256"}]}

        @app.route("/authorize", methods=["GET", "POST"])
        def authorize() -> Any:
            try:
                grant = server.get_consent_grant()
            except OAuth2Error as error:
                return str(error), 400
            if flask.request.method == "GET":
                return FORM
            return server.create_authorization_response(grant_user=flask.request.form["who"], grant=grant)

        @app.post("/token")
        def token() -> Any:
            answer = server.create_token_response()
            if self.forge is not None and answer.status_code == 200:
                document = answer.get_json()
                claims = jwt.decode(document["id_token"], options={"verify_signature": False})
                return {**document, "id_token": self.forge(claims)}
            return answer

        @app.get("/userinfo")
        def userinfo() -> Any:
            return self.people[self.tokens[flask.request.headers["Authorization"].removeprefix("Bearer ")]]

        return app

    def _keep(self, token: dict[str, Any], request: Any) -> None:
        self.tokens[token["access_token"]] = request.user

    def _jwk(self) -> RSAKey:
        return RSAKey.import_key(self.key, {"kid": "1"})


def _grant(provider: Provider) -> type[AuthorizationCodeGrant]:
    class Grant(AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")

        def save_authorization_code(self, code: str, request: Any) -> None:
            asked = request.payload
            provider.codes[code] = Code(
                code, asked.redirect_uri, asked.scope, asked.data["nonce"], request.user,
                asked.data["code_challenge"], asked.data["code_challenge_method"],
            )  # fmt: skip

        def query_authorization_code(self, code: str, client: Any) -> Code | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code: Code) -> None:
            del provider.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: Code) -> str:
            return authorization_code.user

    return Grant


def _id_tokens(provider: Provider) -> OpenIDCode:
    class IdTokens(OpenIDCode):
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return False

        def resolve_client_private_key(self, client: Any) -> Any:
            return provider._jwk()

        def get_client_claims(self, client: Any) -> dict[str, Any]:
            return {"iss": provider.issuer, "aud": [CLIENT_ID], "exp": int(time.time()) + 300, "iat": int(time.time())}

        def generate_user_info(self, user: str, scope: str) -> UserInfo:
            known = provider.people[user]
            return UserInfo({name: value for name, value in known.items() if name not in provider.in_userinfo})

    return IdTokens(require_nonce=True)


@contextmanager
def running_provider(people: dict[str, dict[str, Any]], *redirects: str) -> Iterator[Provider]:
    """Runs a provider, whose client may be answered at the given addresses."""
    provider = Provider(people, redirects)
    server = make_server("127.0.0.1", 0, provider.app(), threaded=True)
    provider.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
