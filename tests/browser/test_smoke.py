"""The way through a run's pages in a real browser, where there is one: a smoke test beside those of `make verify`."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.runs import STOPPED

pytestmark = pytest.mark.timeout(300)
TABS = ("Devices", "Rollouts", "Checkpoints", "Faults", "Logs", "Lineage", "Run")


def test_a_visitor_goes_from_the_run_list_through_all_pages_of_a_run(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=STOPPED, exact=True).click()
    for tab in TABS:
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.get_by_role("link", name=tab, exact=True)).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_contain_text(STOPPED)
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    expect(page.get_by_role("link", name="Sign in to act")).to_be_visible()
