"""Sign-in through a provider in a real browser, whose rules for cookies and redirects decide whether it works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from db.ledger import Ledger
from flows.run.home import Home
from ops.people.sign_in_settings import FILE
from ops.queries.run_list import NOBODY, find_line
from tests.browser.conftest import Errors
from tests.browser.dashboard import served
from tests.browser.runs import STOPPED
from tests.openid_provider import CLIENT_SECRET, Provider, running_provider
from tests.waiting import wait_until

pytestmark = [pytest.mark.verify, pytest.mark.timeout(300)]
PEOPLE = {"olga": {"sub": "1", "email": "olga@example.org", "groups": ["team"]}}
SETTINGS = """
required: true
provider:
  issuer: {issuer}
  client_id: yatt
  credential: {{file: {secret}}}
  roles: {{groups: {{team: operator}}}}
"""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider(PEOPLE) as provider:
        yield provider


@pytest.fixture
def strict(home: Home, provider: Provider, tmp_path: Path) -> Iterator[str]:
    """Yields the address of a dashboard that shows nothing without sign-in."""
    # A copy that is made while an earlier test's promotion is delivered has a lease that nobody gives back.
    with Ledger.open(home.ledger) as ledger:
        wait_until(lambda: find_line(ledger, STOPPED).driver == NOBODY, seconds=120)
    folder = Path(shutil.copytree(home.folder, tmp_path / "runs"))
    secret = tmp_path / "secret"
    secret.write_text(CLIENT_SECRET)
    secret.chmod(0o600)
    (folder / FILE).write_text(SETTINGS.format(issuer=provider.issuer, secret=secret))
    with served(folder) as address:
        provider.redirects = (f"{address.rstrip('/')}/sign-in/callback",)
        yield address


def test_a_person_signs_in_through_a_provider_and_out_again(page: Page, strict: str, errors: Errors) -> None:
    errors.expected.append("favicon")
    page.goto(f"{strict.rstrip('/')}/runs/{STOPPED}")
    expect(page).to_have_url(re.compile(r"/sign-in\?next="))
    page.get_by_role("link", name="Sign in with single sign-on").click()
    page.get_by_label("Name").fill("olga")
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(STOPPED)
    expect(page.get_by_text("Signed in as olga@example.org, operator")).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile(r"/sign-in\?next="))
