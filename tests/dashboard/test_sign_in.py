"""Sign-in through a real OpenID Connect provider, and the attacks on it that must fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.people.openid import LIFETIME_SECONDS
from ops.people.sign_in_settings import FILE, read_settings
from ops.web.context import Context
from tests.dashboard.conftest import ORIGIN, application
from tests.dashboard.pages import BROWSER
from tests.openid_provider import CLIENT_ID, CLIENT_SECRET, Provider, running_provider
from yatt_core.errors import ConfigurationError
from yatt_core.logs import redact

CALLBACK = f"{ORIGIN}/sign-in/callback"
PEOPLE = {
    "olga": {"sub": "1", "email": "olga@example.org", "email_verified": True, "groups": ["staff", "rl-team"]},
    "arno": {"sub": "2", "email": "arno@example.org", "groups": ["rl-admins", "rl-team"]},
    "gast": {"sub": "3", "email": "gast@example.org", "groups": ["staff"]},
    "fake": {"sub": "4", "email": "arno@example.org", "email_verified": False, "groups": ["rl-admins"]},
    "word": {"sub": "6", "email": "arno@example.org", "email_verified": "false", "groups": ["rl-admins"]},
    "noname": {"sub": "5", "groups": ["rl-admins"]},
}
SETTINGS = """
required: true
provider:
  title: Example login
  issuer: {issuer}
  client_id: yatt
  credential: {{env: YATT_TEST_CLIENT_SECRET}}
  roles:
    groups: {{rl-team: operator, rl-admins: admin}}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with running_provider(PEOPLE, CALLBACK) as provider:
        yield provider


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.forge = None
    running.metadata = {}
    running.in_userinfo = frozenset()
    return running


@pytest.fixture
def browser(home: Home, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Yields a browser of the dashboard, which keeps cookies."""
    monkeypatch.setenv("YATT_TEST_CLIENT_SECRET", CLIENT_SECRET)
    (home.folder / FILE).write_text(SETTINGS.format(issuer=provider.issuer))
    with (
        application(home) as app,
        TestClient(app, base_url=ORIGIN, headers=BROWSER, follow_redirects=False) as client,
    ):
        yield client


def begun(browser: TestClient, following: str = "/") -> str:
    """Begins a sign-in; returns the provider's page."""
    answer = browser.get("/sign-in/provider", params={"next": following})
    assert answer.status_code == 303
    return answer.headers["location"]


def answered(page: str, who: str) -> str:
    """Signs in at the provider; returns the address to which it sends the browser."""
    answer = httpx.post(page, data={"who": who})
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def signed_in(browser: TestClient, who: str, following: str = "/") -> httpx.Response:
    return browser.get(answered(begun(browser, following), who))


def test_a_person_signs_in_with_the_role_of_the_group(browser: TestClient, provider: Provider) -> None:
    assert browser.get("/runs/toy-2").headers["location"] == "/sign-in?next=%2Fruns%2Ftoy-2"
    assert "Sign in with Example login" in browser.get("/sign-in").text
    page = begun(browser, "/runs/toy-2?x=1")
    asked = parse_qs(urlsplit(page).query)
    assert asked["code_challenge_method"] == ["S256"] and asked["redirect_uri"] == [CALLBACK]
    landed = browser.get(answered(page, "olga"))
    assert landed.status_code == 200 and 'content="0; url=/runs/toy-2?x=1"' in landed.text
    assert "SameSite=strict" in landed.headers["set-cookie"] and "HttpOnly" in landed.headers["set-cookie"]
    assert browser.get("/api/v1/session").json() == {"name": "olga@example.org", "role": "operator"}
    ours = {"Origin": ORIGIN}
    assert browser.post("/api/v1/runs/toy-2/stop", json={}, headers=ours).json()["by"] == "olga@example.org"
    assert browser.post("/api/v1/runs/toy-2/delete", json={}, headers=ours).status_code == 403
    served: Context = browser.app.state.context  # type: ignore[attr-defined]
    assert "olga@example.org" in str(served.ledger.events.links("toy-2")[-1].body)
    assert browser.post("/sign-out", headers=ours).status_code == 303
    assert browser.get("/api/v1/session").json()["name"] is None
    assert redact(f"x {CLIENT_SECRET} y") == "x *** y"


def test_the_most_powerful_group_counts_and_userinfo_completes_the_claims(
    browser: TestClient, provider: Provider
) -> None:
    provider.in_userinfo = frozenset({"email", "groups"})
    assert signed_in(browser, "arno").status_code == 200
    assert browser.get("/api/v1/session").json() == {"name": "arno@example.org", "role": "admin"}


@pytest.mark.parametrize(
    ("who", "why"),
    [("gast", "has no role here"), ("fake", "not verified"), ("word", "not verified"), ("noname", "no usable email")],
)
def test_who_has_no_role_or_no_verified_name_is_refused(browser: TestClient, who: str, why: str) -> None:
    refused = signed_in(browser, who)
    assert refused.status_code == 403 and why in refused.text
    assert browser.get("/api/v1/session").json()["name"] is None


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", "none")


OTHER_KEY = rsa.generate_private_key(65537, 2048)
FORGED: dict[str, Callable[[Provider, dict[str, Any]], str]] = {
    "nonce": lambda provider, claims: provider.signed(claims, nonce="of another sign-in"),
    "no nonce": lambda provider, claims: provider.signed({k: v for k, v in claims.items() if k != "nonce"}),
    "issuer": lambda provider, claims: provider.signed(claims, iss="http://127.0.0.1:1"),
    "audience": lambda provider, claims: provider.signed(claims, aud=["another-client"]),
    "authorized party": lambda provider, claims: provider.signed(claims, azp="another-client"),
    "expired": lambda provider, claims: provider.signed(claims, exp=int(time.time()) - 60),
    "no expiry": lambda provider, claims: provider.signed({k: v for k, v in claims.items() if k != "exp"}),
    "not yet valid": lambda provider, claims: provider.signed(claims, nbf=int(time.time()) + 600),
    "alg none": lambda provider, claims: unsigned(claims),
    "alg none, known key": lambda provider, claims: jwt.encode(claims, "", "none", headers={"kid": "1"}),
    "HMAC": lambda provider, claims: jwt.encode(claims, CLIENT_SECRET.encode() * 4, "HS256", headers={"kid": "1"}),
    "other key, unnamed": lambda provider, claims: jwt.encode(claims, OTHER_KEY, "RS256"),
    "other key": lambda provider, claims: jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "1"}),
    "unknown key": lambda provider, claims: jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "2"}),
    "garbage": lambda provider, claims: "x.y.z",
}


@pytest.mark.parametrize("attack", FORGED)
def test_a_forged_id_token_opens_no_session(browser: TestClient, provider: Provider, attack: str) -> None:
    provider.forge = lambda claims: FORGED[attack](provider, claims)
    refused = signed_in(browser, "arno")
    assert refused.status_code == 403 and "ID token is not valid" in refused.text, refused.text
    assert browser.get("/api/v1/session").json()["name"] is None


def test_a_right_token_passes_the_forger(browser: TestClient, provider: Provider) -> None:
    """What the test above refuses differs from this only in what each attack changes."""
    provider.forge = provider.signed
    assert signed_in(browser, "arno").status_code == 200


def test_an_answer_is_good_once_in_the_browser_that_began_and_for_ten_minutes(
    browser: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answered(begun(browser), "arno")
    stolen = dict(browser.cookies)
    browser.cookies.clear()
    other = browser.get(answer)
    assert other.status_code == 403 and "another browser" in other.text
    browser.cookies.update(stolen)
    assert "already used" in browser.get(answer).text
    browser.cookies.clear()
    answer = answered(begun(browser), "arno")
    assert browser.get(answer).status_code == 200
    browser.cookies.clear()
    assert "already used" in browser.get(answer).text
    assert browser.get("/api/v1/session").json()["name"] is None
    answer = answered(begun(browser), "arno")
    served: Context = browser.app.state.context  # type: ignore[attr-defined]
    monkeypatch.setattr(served.provider, "_clock", lambda: time.monotonic() + LIFETIME_SECONDS)
    assert "has taken too long" in browser.get(answer).text


def test_an_answer_of_another_provider_or_without_a_code_is_refused(browser: TestClient) -> None:
    for change in ("&iss=https://evil.example", "&error=access_denied"):
        assert browser.get(answered(begun(browser), "arno") + change).status_code == 403
    for query in ("", "?state=x&code=y", "?code=y"):
        assert browser.get(f"/sign-in/callback{query}").status_code == 403
    state = parse_qs(urlsplit(begun(browser)).query)["state"][0]
    assert browser.get(f"/sign-in/callback?state={state}&code=guess").status_code == 403
    assert browser.get("/api/v1/session").json()["name"] is None


def test_an_intercepted_code_is_worthless_without_the_verifier(browser: TestClient, provider: Provider) -> None:
    code = parse_qs(urlsplit(answered(begun(browser), "arno")).query)["code"][0]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": CALLBACK, "code_verifier": "x" * 43}
    got = httpx.post(f"{provider.issuer}/token", data=form, auth=(CLIENT_ID, CLIENT_SECRET))
    assert got.status_code == 400 and "id_token" not in got.text


@pytest.mark.parametrize(
    "following", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "//[evil"]
)
def test_sign_in_never_leads_to_another_site(browser: TestClient, following: str) -> None:
    landed = signed_in(browser, "arno", following)
    assert landed.status_code == 200 and "evil" not in landed.text and 'url=/"' in landed.text
    page = begun(browser)
    moved = page.replace("127.0.0.1%3A8686", "evil.example")
    assert httpx.post(moved, data={"who": "arno"}).status_code == 400
    assert browser.get("/sign-in/provider", headers={"Host": "evil.example"}).status_code == 421


def test_addresses_that_are_none_lead_to_the_first_page(browser: TestClient) -> None:
    assert browser.get("/sign-in?next=//[").status_code == 200
    assert browser.get("/", headers={"HX-Current-URL": "http://["}).headers["location"] == "/sign-in?next=%2F"
    assert browser.get("/sign-in/nowhere", headers={"Referer": "http://["}).status_code == 404


@pytest.mark.parametrize("error", [ConnectionResetError(), ValueError("no JSON")])
def test_keys_that_cannot_be_read_are_the_providers_trouble(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fetch(self: jwt.PyJWKClient) -> None:
        raise error

    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", fetch)
    assert signed_in(browser, "arno").status_code == 503


def test_a_provider_with_other_metadata_is_not_asked(home: Home, provider: Provider, browser: TestClient) -> None:
    for change in ({"issuer": "http://127.0.0.1:1"}, {"jwks_uri": "http://evil.example/keys"}):
        provider.metadata = change
        refused = browser.get("/sign-in/provider")
        assert refused.status_code == 403, refused.text
    provider.metadata = {"token_endpoint": None}
    assert browser.get("/sign-in/provider").status_code == 503


def test_a_provider_that_does_not_answer_is_reported(home: Home) -> None:
    (home.folder / FILE).write_text(SETTINGS.format(issuer="http://127.0.0.1:1"))
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as client:
        answer = client.get("/sign-in/provider")
        assert answer.status_code == 503 and "does not answer" in answer.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requird: true", "requird: unknown key; did you mean 'required'?"),
        ("provider: {issuer: 'http://login.example', client_id: x, roles: {default: viewer}}", "not an https URL"),
        ("provider: {issuer: 'https://login.example', client_id: x}", "nobody could sign in"),
        ("provider: {issuer: 'https://login.example', client_id: x, credential: hunter2, roles: {default: viewer}}",
         "provider.credential: expected where the secret is, {env: NAME}"),
        ("provider: {issuer: 'https://login.example', client_id: x, roles: {groups: {a: king}}}", "provider.roles.groups.a"),
    ],
)  # fmt: skip
def test_mistakes_in_the_settings_are_named_and_secrets_in_them_are_not_repeated(
    home: Home, text: str, said: str
) -> None:
    (home.folder / FILE).write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_settings(home.folder)
    assert said in str(raised.value) and "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("value", "required"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_require_sign_in(
    home: Home, monkeypatch: pytest.MonkeyPatch, value: str, required: bool
) -> None:
    monkeypatch.setitem(os.environ, "YATT_REQUIRE_SIGN_IN", value)
    assert create_app(home).state.context.reading_needs_sign_in is required
