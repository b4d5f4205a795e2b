"""Every page in a real browser: no serious findings of axe-core, nothing wider than the screen, usable by keyboard."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Route, expect

from tests.browser.conftest import Errors
from tests.browser.dashboard import NARROW, WIDE, Outside
from tests.browser.runs import DRIVEN, JUDGED, SHAKEN, STOPPED
from tests.browser.tabs import sign_in
from tests.dashboard.seeding import HOSTILE, NAME

pytestmark = [pytest.mark.verify, pytest.mark.timeout(600)]
PAGES = {
    "run list": "/",
    "run": f"/runs/{DRIVEN}?metric=entropy",
    "spec": f"/runs/{DRIVEN}/spec",
    "devices": f"/runs/{JUDGED}/devices?iteration=3",
    "rollouts": f"/runs/{STOPPED}/rollouts?iteration=2&against=1&order=reward",
    "checkpoints": f"/runs/{STOPPED}/checkpoints",
    "faults": f"/runs/{SHAKEN}/faults",
    "logs": f"/runs/{STOPPED}/logs",
    "lineage": f"/runs/{SHAKEN}/lineage",
    "compare": f"/compare?run={STOPPED}&run={DRIVEN}",
    "new": "/new",
    "sign-in": "/sign-in",
}
CHARTED = ("run", "devices", "compare")
SERIOUS = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => `${one.id}: ${one.nodes.map(node => node.target + " " + node.failureSummary).join("; ")}`);
}"""


def opened(page: Page, address: str, name: str) -> None:
    page.goto(address + PAGES[name])
    if name in CHARTED:
        expect(page.locator("html[data-charts=drawn]")).to_be_attached()


@pytest.mark.parametrize("name", PAGES)
def test_no_serious_finding_in_light_or_dark_on_desktop_or_phone(page: Page, address: str, name: str) -> None:
    for width, height in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            opened(page, address, name)
            assert page.evaluate(SERIOUS) == [], f"{name}, {scheme}, {width} wide"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"


def test_a_dialog_has_no_serious_finding(page: Page, address: str, token: str) -> None:
    sign_in(page, address, token, f"/runs/{DRIVEN}")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("dialog", name="Stop the run")).to_be_visible()
    assert page.evaluate(SERIOUS) == []


def test_a_page_is_usable_by_keyboard_alone(page: Page, address: str, token: str) -> None:
    sign_in(page, address, token, f"/runs/{DRIVEN}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    stop = page.get_by_role("button", name="Stop", exact=True)
    tab_to(page, stop.evaluate_handle("element => element"))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop the run")
    expect(dialog).to_be_visible()
    assert dialog.evaluate("dialog => dialog.contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(stop).to_be_focused()
    plot = page.locator(".chart .plot").first
    plot.focus()
    page.keyboard.press("Home")
    told = page.locator(".chart .told").first
    expect(told).to_contain_text("iteration 1:")
    page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("iteration 2:")


def tab_to(page: Page, element: object) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("element => document.activeElement === element", element):
            return
    raise AssertionError("the element is not reachable by Tab")


def test_a_chart_shows_that_it_is_loading_has_no_points_or_failed(page: Page, address: str, errors: Errors) -> None:
    held: list[Route] = []
    page.route("**/series?*", lambda route: held.append(route))
    page.goto(address + PAGES["run"])
    reward = page.locator(".chart[data-title=Reward]")
    loading = page.locator(".chart .loading")
    expect(reward).to_contain_text("loading…")
    expect(page.locator(".charts .none").first).to_be_hidden()
    page.route("**/series?*", lambda route: route.fulfill(json={"series": []}))
    for each in held:
        each.fulfill(json={"series": []})
    expect(loading).to_have_count(0)
    expect(reward).to_be_hidden()
    expect(page.locator(".charts .none").first).to_have_text("No points yet.")
    expect(page.locator(".charted").first).to_be_hidden()
    errors.expected.append("503")
    page.route("**/series?*", lambda route: route.fulfill(status=503))
    page.goto(address + PAGES["run"])
    expect(reward.locator(".told")).to_contain_text("503")
    expect(loading).to_have_count(0)


def test_charts_are_smoothed_and_logarithmic_and_the_address_says_so(page: Page, address: str) -> None:
    opened(page, address, "run")
    drawn = "() => document.querySelector('.chart[data-title=Reward] canvas').toDataURL()"
    before = page.evaluate(drawn)
    page.get_by_label("Smoothing").fill("0.8")
    assert page.evaluate(drawn) != before
    smoothed = page.evaluate(drawn)
    page.get_by_label("Logarithmic axis").check()
    assert page.evaluate(drawn) != smoothed
    assert "smooth=0.8" in page.url and "log=true" in page.url and "metric=entropy" in page.url
    page.reload()
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    expect(page.get_by_label("Smoothing")).to_have_value("0.8")
    expect(page.get_by_label("Logarithmic axis")).to_be_checked()
    page.get_by_label("reward/mean", exact=True).check()
    page.get_by_role("button", name="Show these metrics").click()
    expect(page.locator(".chart[data-title='reward/mean']")).to_be_visible()
    assert "metric=entropy&metric=reward%2Fmean" in page.url and "smooth=0.8" in page.url


def test_ticked_runs_are_compared(page: Page, address: str) -> None:
    page.goto(f"{address}/")
    for run in (STOPPED, DRIVEN):
        page.get_by_label(f"Tick {run}").check()
    page.get_by_role("button", name="Compare ticked runs").click()
    expect(page.locator("html[data-charts=drawn]")).to_be_attached()
    expect(page.locator(".chart[data-title=Reward] .told")).to_contain_text(STOPPED)
    expect(page.locator(".chart[data-title=Reward] .told")).to_contain_text(DRIVEN)


def test_a_note_and_tags_are_changed_by_form(page: Page, address: str, token: str) -> None:
    sign_in(page, address, token, f"/runs/{SHAKEN}")
    page.get_by_text("Edit the note").click()
    page.get_by_label("Note (empty").fill("collapsed\ntwice")
    page.get_by_role("button", name="Save the note").click()
    expect(page.get_by_role("status")).to_be_visible()
    expect(page.locator("p.text")).to_have_text("collapsed\ntwice")
    page.get_by_label("Add tags").fill("baseline lr-3")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Remove the tag lr-3").click()
    page.get_by_role("link", name="baseline", exact=True).click()
    expect(page.get_by_role("rowheader")).to_have_count(1)
    expect(page.get_by_role("rowheader")).to_contain_text(SHAKEN)


def test_colours_follow_the_system_until_a_theme_is_chosen(page: Page, address: str) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/")
    light = paper()
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html[data-theme=dark]")).to_be_attached()
    assert paper() != light
    switch = page.get_by_role("button", name="Theme")
    switch.press("Enter")
    expect(switch).to_contain_text("light")
    assert paper() == light
    page.reload()
    expect(switch).to_contain_text("light")
    assert paper() == light


def test_a_page_without_scripts_is_readable_on_a_dark_system(chromium: Browser, address: str) -> None:
    context = chromium.new_context(color_scheme="dark", java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/")
    expect(page.locator("body")).to_have_css("color", "rgb(22, 25, 29)")
    expect(page.locator("body")).to_have_css("background-color", "rgb(246, 247, 249)")
    context.close()


def test_a_placement_shows_its_reason_and_its_devices_by_arrow_keys(page: Page, address: str) -> None:
    page.goto(f"{address}/runs/{JUDGED}/devices")
    expect(page.locator("#reason")).to_contain_text("instances judge")
    page.get_by_role("link", name="← 3").click()
    expect(page.get_by_role("heading", name="Iteration 3: dynamic")).to_be_visible()
    first = page.locator("[data-walk=gantt-told] .item").first
    first.focus()
    expect(page.locator("#gantt-told")).to_contain_text("instance 0:")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#gantt-told")).to_contain_text("instance 1:")


def test_rollouts_are_searched_sorted_and_compared_without_a_reload(page: Page, address: str) -> None:
    page.goto(f"{address}/runs/{STOPPED}/rollouts")
    page.evaluate("window.unchanged = true")
    expect(page.locator(".sample")).to_have_count(4)
    page.locator("select[name=view]").select_option("samples")
    expect(page.locator(".sample")).to_have_count(8)
    page.get_by_label("Prompt or response contains").press_sequentially("answer 2.")
    expect(page.locator(".sample")).to_have_count(2)
    page.get_by_label("Sort by").select_option("reward")
    expect(page.locator(".sample").first).to_contain_text("answer 2.1")
    assert page.evaluate("window.unchanged") is True
    assert "order=reward" in page.url and "text=answer" in page.url
    page.get_by_label("Compare with iteration").fill("1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#comparison-title")).to_contain_text(re.compile(r"\b1\b.*\b2\b"))
    page.locator("select[name=view]").select_option("prompts")
    expect(page.locator(".sample")).to_have_count(1)
    expect(page.locator(".sample")).to_contain_text("same prompt")
    expect(page.locator(".sample details")).to_have_count(4)


def test_actions_need_a_token_and_a_wrong_one_is_refused(page: Page, address: str, errors: Errors) -> None:
    errors.expected.append("401")
    page.goto(f"{address}/runs/{DRIVEN}")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    send = "async path => (await fetch(path, {method: 'POST', body: new URLSearchParams()})).status"
    for path in (f"/runs/{DRIVEN}/stop", f"/api/v1/runs/{DRIVEN}/stop"):
        assert page.evaluate(send, path) == 401
    page.get_by_role("link", name="Sign in to act").click()
    page.get_by_label("Token").fill("yatt_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("`yatt token list`")


def test_a_checkpoint_is_verified_in_the_users_name(page: Page, address: str, token: str) -> None:
    sign_in(page, address, token, f"/runs/{STOPPED}/checkpoints")
    row = page.locator("tbody tr", has_text="lineage").first
    row.get_by_role("button", name="Verify").click()
    expect(row).to_contain_text("sound")
    expect(row).to_contain_text("by browser")


def test_a_checkpoint_is_promoted_with_a_reason(page: Page, address: str, token: str) -> None:
    sign_in(page, address, token, f"/runs/{STOPPED}/checkpoints")
    page.get_by_role("button", name="Promote checkpoint 2").click()
    dialog = page.get_by_role("dialog", name="Promote checkpoint 2")
    dialog.get_by_label("Alias").select_option("champion")
    dialog.get_by_label("Reason").fill("best on the held-out tasks")
    dialog.get_by_role("button", name="Promote").click()
    expect(page.locator("tbody tr", has_text="lineage").first).to_contain_text("champion")
    promotions = page.get_by_role("region", name="Promotions").get_by_role("row").nth(1)
    for told in ("champion", "browser", "best on the held-out tasks"):
        expect(promotions).to_contain_text(told)


def test_hostile_text_is_shown_as_text(page: Page, address: str) -> None:
    page.goto(f"{address}/")
    page.get_by_role("link", name=NAME).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(NAME)
    for tab, place in (("Rollouts", "pre"), ("Faults", "td"), ("Logs", ".message")):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.locator(place).filter(has_text=HOSTILE).first).to_be_visible()
    page.goto(f"{address}/?text={quote(HOSTILE)}")
    expect(page.get_by_label("Name contains")).to_have_value(HOSTILE)


def test_the_content_policy_blocks_an_injected_script(page: Page, address: str, errors: Errors) -> None:
    errors.expected.append("Content Security Policy")
    page.goto(f"{address}/")
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.broken = true";
          document.body.append(script);
          const markup = "<b id=styled style='color: rgb(1, 2, 3)' onclick='window.broken = true'>x</b>";
          document.body.insertAdjacentHTML("beforeend", markup);
          document.getElementById("styled").click();
        }"""
    )
    assert page.evaluate("window.broken") is None
    assert page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(1, 2, 3)"
    assert errors.seen, "the browser reports what it blocked"


def test_a_request_to_another_host_is_noticed(context: BrowserContext, outside: Outside) -> None:
    """The other tests rely on this."""
    page = context.new_page()
    with pytest.raises(Error):
        page.goto("http://elsewhere.example/")
    assert any("elsewhere.example" in line for line in outside.by_pages)
    outside.asked.clear()
