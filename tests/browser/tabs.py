"""Actions that tests take in a tab as a person would."""

from __future__ import annotations

from urllib.parse import quote

from playwright.sync_api import Page, expect


def sign_in(page: Page, address: str, token: str, then: str) -> None:
    page.goto(f"{address}/sign-in?next={quote(then)}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
