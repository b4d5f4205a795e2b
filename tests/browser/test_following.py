"""An open page follows its run: new charts, ages, state and buttons; a hidden tab holds no stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.metrics import RESULT, Metric
from flows.run.home import Home
from tests.browser.tabs import sign_in
from tests.dashboard.seeding import NAME
from tests.ops.seeding import commit_of, seed_run

pytestmark = [pytest.mark.verify, pytest.mark.timeout(600)]


@pytest.fixture
def driver(home: Home) -> Iterator[tuple[Ledger, Fence]]:
    """Yields a new run with its driver."""
    run = seed_run(home, ends=True)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        ledger.runs.set_state(fence, "running")
        yield ledger, fence
        ledger.leases.release(fence)


def test_charts_state_and_buttons_follow_the_run(
    page: Page, address: str, token: str, driver: tuple[Ledger, Fence]
) -> None:
    ledger, fence = driver
    sign_in(page, address, token, f"/runs/{fence.run}")
    expect(page.locator("[data-live]")).to_have_text("connected")
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    heading = page.get_by_role("heading", level=1).element_handle()
    kl = page.locator("figure.chart[data-title=KL]")
    expect(kl).to_be_hidden()
    colour = page.locator("figure.chart[data-title=Accuracy] .swatch").first.get_attribute("class")
    commit = commit_of(3)
    ledger.commits.commit(fence, replace(commit, metrics=[*commit.metrics, Metric("kl", 0.1, RESULT)]))
    expect(kl).to_be_visible()
    expect(kl.locator("canvas")).to_be_visible()
    assert page.locator("figure.chart[data-title=Accuracy] .swatch").first.get_attribute("class") == colour
    assert heading.evaluate("heading => heading.isConnected"), "unchanged elements stay"
    ledger.runs.ask_to_stop(fence.run, "a test")
    expect(page.locator("#standing")).to_contain_text("stopping")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def test_the_page_of_a_run_that_finishes_stops_listening_and_polling(page: Page, address: str, home: Home) -> None:
    run = seed_run(home, ends=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        page.goto(f"{address}/runs/{run}")
        expect(page.locator("[data-live]")).to_have_text("connected")
        ledger.runs.set_state(fence, "completed", "target reached")
        ledger.leases.release(fence)
    expect(page.locator("[data-live]")).to_have_text("finished")
    expect(page.locator("#standing")).to_contain_text("completed")
    page.wait_for_timeout(2_000)  # what the last event triggers
    asked.clear()
    page.wait_for_timeout(16_000)  # longer than the interval of polling
    assert asked == []


def test_a_dialog_stays_open_while_the_run_moves(
    page: Page, address: str, token: str, driver: tuple[Ledger, Fence]
) -> None:
    ledger, fence = driver
    sign_in(page, address, token, f"/runs/{fence.run}")
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog", name="Stop the run")
    dialog.get_by_label("Reason").fill("half a rea")
    ledger.commits.commit(fence, commit_of(3))
    expect(page.locator("#now dd").first).to_contain_text("3")
    expect(dialog.get_by_label("Reason")).to_have_value("half a rea")


def test_a_hidden_tab_holds_no_stream(context: BrowserContext, page: Page, address: str) -> None:
    """Headless tabs are always visible, so the page's `hidden` property is overridden."""
    page.add_init_script(
        """window.opened = [];
        const Real = EventSource;
        window.EventSource = class extends Real { constructor(url) { super(url); window.opened.push(this); } };"""
    )
    page.goto(f"{address}/runs/toy-2")
    expect(page.locator("[data-live]")).to_have_text("connected")
    show = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    states = "window.opened.map(stream => stream.readyState)"
    page.evaluate(show, True)
    assert page.evaluate(states) == [2]
    page.evaluate(show, False)
    page.wait_for_function(f"() => JSON.stringify({states}) === '[2,1]'")
    expect(page.locator("[data-live]")).to_have_text("connected")


def test_a_run_has_its_colour_in_every_curve(page: Page, address: str) -> None:
    """The first of the two runs has no reward yet."""
    page.goto(f"{address}/compare?run={quote(NAME)}-1&run=toy-1")
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    expect(page.locator("figure.chart[data-title=Accuracy] .swatch.c1")).to_be_visible()
    expect(page.locator("figure.chart[data-title=Reward] .swatch")).to_have_count(1)
    expect(page.locator("figure.chart[data-title=Reward] .swatch.c2")).to_be_visible()
