"""A smoke test: visits all pages of a run in a real browser, if there is one. `make verify` tests more."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.runs import STOPPED

pytestmark = pytest.mark.timeout(300)
TABS = ("Devices", "Rollouts", "Checkpoints", "Faults", "Logs", "Lineage", "Run")


def test_a_visitor_opens_all_pages_of_a_run_from_the_run_list(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=STOPPED, exact=True).click()
    for tab in TABS:
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.get_by_role("link", name=tab, exact=True)).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_contain_text(STOPPED)
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    expect(page.get_by_role("link", name="Sign in to act")).to_be_visible()
