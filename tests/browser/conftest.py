"""Fixtures of the browser tests: one Chromium per module, an error-free tab per test, a dashboard over seeded runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from flows.run.home import Home
from ops.people.roles import Role
from ops.people.tokens import TokenStore
from tests.browser.dashboard import WIDE, Outside, served, started_chromium
from tests.browser.install import find_chromium, why_not_installable
from tests.browser.runs import seed_runs

PATIENCE_MS = 120_000
"""The timeout of a test; pages load slowly on a busy machine."""
expect.set_options(timeout=PATIENCE_MS)
AXE = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    place = Outside()
    yield place
    place.close()


@pytest.fixture(scope="module")
def chromium(outside: Outside) -> Iterator[Browser]:
    """Yields a browser that is closed at the end of the module.

    While Playwright runs, its event loop runs in this process, so no other test may start an event loop.
    """
    path = find_chromium()
    if path is None:
        why = why_not_installable() or "`python -m tests.browser.install` was not run, or failed"
        pytest.skip(f"NO BROWSER: the pages are not tested in a browser: none is installed, and {why}")
    with started_chromium(path, outside) as browser:
        yield browser


@dataclass
class Errors:
    """Errors reported by a tab. expected: substrings of errors that a test provokes."""

    seen: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            # The text of a missing file does not name it.
            self.seen.append(f"{message.text} ({message.location['url']})")

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.seen if not any(part in text for part in self.expected)]


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(path=AXE)
    yield context
    context.close()


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def page(context: BrowserContext, errors: Errors, outside: Outside) -> Iterator[Page]:
    """Yields a tab. Fails the test for an error on the console, an alert, or a request that leaves this machine."""
    page = context.new_page()
    page.on("console", errors.console)
    page.on("pageerror", lambda error: errors.seen.append(str(error)))
    page.on("dialog", lambda dialog: (errors.seen.append(f"alert: {dialog.message}"), dialog.dismiss()))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert errors.unexpected == []
    assert asked and not [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))]
    assert outside.by_pages == [], "the browser sent requests that leave this machine"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    place = Home(tmp_path_factory.mktemp("browser") / "runs")
    seed_runs(place)
    return place


@pytest.fixture(scope="session")
def address(home: Home) -> Iterator[str]:
    with served(home.folder) as address:
        yield address


@pytest.fixture(scope="session")
def token(home: Home) -> str:
    return TokenStore(home.folder).create("browser", Role.ADMIN)
