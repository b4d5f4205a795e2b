"""An operator's work on a real run: it is watched, stopped, inspected, verified and resumed from the page."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from db.ledger import Ledger
from flows.run.home import Home
from ops.people.roles import Role
from ops.people.tokens import TokenStore
from tests.browser.dashboard import child_environment, served
from tests.browser.tabs import sign_in
from tests.services import ROOT

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
RUN = "virtual-1"
SMALL = ("iterations=5000", "checkpoints.every=2", "rollout.engine.clock_factor=30", "trainer.engine.clock_factor=30")
SECONDS = 240.0


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Home]:
    """Runs `yatt train` as a separate process, with its second iteration committed."""
    home = Home(tmp_path / "runs")
    changes = [word for value in SMALL for word in ("--set", value)]
    command = [
        sys.executable,
        "-m",
        "ops.cli.main",
        "--home",
        str(home.folder),
        "train",
        "configs/virtual.yaml",
        *changes,
    ]
    log = tmp_path / "train.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream, env=child_environment())
    try:
        wait_for_iteration(home, 2, process, log)
        yield home
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_for_iteration(home: Home, iteration: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        if (home.folder / "ledger.db").exists():
            with Ledger.open(home.ledger) as ledger:
                runs = ledger.runs.list()
                if runs and runs[0].iteration >= iteration:
                    return
        time.sleep(0.5)
    raise TimeoutError(log.read_text())


def test_an_operator_stops_verifies_and_resumes_a_run(living: Home, page: Page) -> None:
    token = TokenStore(living.folder).create("operator", Role.APPROVER)
    with served(living.folder) as address:
        watch(page, address)
        sign_in(page, address, token, f"/runs/{RUN}")
        act(page, "Stop", "Stop the run", "looked at enough")
        expect(page.get_by_role("heading", level=1).locator("..")).to_contain_text(re.compile("stopping|stopped"))
        wait_until(page, f"{address}/runs/{RUN}", "stopped")
        inspect_pages(page, address)
        verify_and_promote(page, address)
        page.goto(f"{address}/runs/{RUN}")
        act(page, "Resume", "Resume the run", "there is time again")
        wait_until(page, f"{address}/runs/{RUN}", "running")
        watch(page, address)
        act(page, "Stop", "Stop the run", "done")
        wait_until(page, f"{address}/runs/{RUN}", "stopped")
    check_names(living)


def watch(page: Page, address: str) -> None:
    """Checks that the page follows the run without being reloaded, and that its charts grow."""
    page.goto(f"{address}/runs/{RUN}")
    page.evaluate("window.unchanged = true")
    expect(page.locator("[data-live]")).to_have_text("connected")
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    seen = committed(page)
    told = page.locator(".chart .told").first.inner_text()
    page.wait_for_function(COMMITTED_PAST, arg=seen + 1)
    page.wait_for_function("told => document.querySelector('.chart .told').innerText !== told", arg=told)
    assert page.evaluate("window.unchanged") is True
    assert page.locator(".chart canvas").count() > 5


COMMITTED = "Number(document.querySelector('#now dd').firstChild.textContent.replaceAll(',', ''))"
COMMITTED_PAST = f"seen => {COMMITTED} > seen"


def committed(page: Page) -> int:
    return int(page.evaluate(COMMITTED))


def act(page: Page, button: str, dialog: str, reason: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    box = page.get_by_role("dialog", name=dialog)
    box.locator("[name=reason]").fill(reason)
    box.get_by_role("button", name=dialog).click()
    expect(page.locator("p[role=status]")).to_be_visible()


def wait_until(page: Page, address: str, state: str) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        page.goto(address)
        if page.locator("header .badge", has_text=state).count():
            return
        page.wait_for_timeout(500)
    raise TimeoutError(f"the page never shows {state}")


def inspect_pages(page: Page, address: str) -> None:
    """Checks samples, a placement with its reason, logs, and the cost of crashes."""
    page.goto(f"{address}/runs/{RUN}/rollouts?iteration=1")
    expect(page.locator(".sample").first).to_contain_text("reward")
    page.get_by_role("link", name="Devices", exact=True).click()
    expect(page.locator("#reason")).to_contain_text("all instances roll out:")
    page.get_by_role("link", name="Logs", exact=True).click()
    expect(page.locator(".log li").first).to_be_visible()
    page.get_by_role("link", name="Faults", exact=True).click()
    expect(page.locator("#crashes-title")).to_be_visible()
    page.get_by_role("link", name="Lineage", exact=True).click()
    expect(page.locator("#made-title")).to_be_visible()


def verify_and_promote(page: Page, address: str) -> None:
    page.goto(f"{address}/runs/{RUN}/checkpoints")
    row = page.locator("tbody tr", has_text="kept").first
    row.get_by_role("button", name=re.compile("Verify")).click()
    row = page.locator("tbody tr", has_text="kept").first
    expect(row).to_contain_text("sound")
    row.get_by_role("button", name=re.compile("Promote")).click()
    dialog = page.get_by_role("dialog", name=re.compile("Promote"))
    dialog.locator("[name=why]").fill("looks sound")
    dialog.get_by_role("button", name="Promote").click()
    expect(page.locator("tbody tr", has_text="kept").first).to_contain_text("candidate")


def check_names(home: Home) -> None:
    """Checks that the audit chain names the token for each action."""
    with Ledger.open(home.ledger) as ledger:
        asked = [
            link.body for link in ledger.events.of_kind(RUN, "desired_state") if link.body["desired_state"] == "stop"
        ]
        assert [body["reason"] for body in asked] == [
            "operator, through the dashboard: looked at enough",
            "operator, through the dashboard: done",
        ]
        _, resumed = ledger.events.of_kind(RUN, "resume_requested")
        assert (resumed.body["by"], resumed.body["reason"]) == ("operator", "there is time again")
        (promoted,) = ledger.aliases.history(RUN)
        assert (promoted.alias, promoted.by, promoted.why) == ("candidate", "operator", "looks sound")
        (verified,) = ledger.events.of_kind(RUN, "checkpoint_verified")
        assert (verified.body["by"], verified.body["sound"]) == ("operator", True)
        assert ledger.events.verify(RUN) is None
