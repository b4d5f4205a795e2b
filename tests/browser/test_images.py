"""The images of a run's samples in a real browser: a grid of prompts over iterations, one of which a click enlarges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect

from flows.run.home import Home
from tests.browser.conftest import Errors
from tests.browser.dashboard import NARROW, WIDE
from tests.browser.test_pages import SERIOUS
from tests.needs import NEEDS_DIFFUSERS
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.workloads.diffusion.shapes import PROMPTS, SIDE

pytestmark = [pytest.mark.verify, pytest.mark.timeout(600)]
SPECS = ROOT / "tests" / "workloads"
GROUP = 2
"""Images of a prompt and an iteration."""


def driven(home: Home, spec: Path) -> str:
    torch.set_num_threads(1)
    run = OwnRun.of(home.folder, spec)
    run.drive()
    return run.run


@pytest.fixture(scope="module")
def drawn(home: Home) -> str:
    """A run of diffusion."""
    return driven(home, SPECS / "diffusion" / "drawing.yaml")


@pytest.fixture(scope="module")
def painted(home: Home) -> str:
    """A run whose prompts are hostile, of a workload that paints without a model."""
    return driven(home, SPECS / "painting.yaml")


@NEEDS_DIFFUSERS
def test_images_of_diffusion_stand_in_a_grid_and_a_click_enlarges_one(
    page: Page, address: str, drawn: str, errors: Errors
) -> None:
    page.goto(f"{address}/runs/{drawn}/rollouts")
    grid = page.get_by_role("region", name="Images over iterations").get_by_role("table")
    expect(grid.get_by_role("columnheader")).to_have_text(["Prompt", *(f"iteration {number}" for number in (1, 2, 3))])
    expect(grid.get_by_role("rowheader")).to_have_text(list(PROMPTS))
    name = f"{PROMPTS[0]}, image 2 of iteration 3"
    thumbnail = grid.get_by_role("button", name=name, exact=True)
    expect(thumbnail.get_by_role("img")).to_have_js_property("naturalWidth", SIDE)  # waits until it is loaded
    expect(grid.get_by_role("cell").nth(2).get_by_role("button")).to_have_count(GROUP)
    enlarged = page.get_by_role("dialog", name=name, exact=True)
    expect(enlarged).to_be_hidden()
    thumbnail.click()
    expect(enlarged).to_be_visible()
    picture = enlarged.get_by_role("img")
    expect(picture).to_be_visible()
    expect(picture).to_have_js_property("naturalWidth", SIDE)
    before = thumbnail.bounding_box()
    after = picture.bounding_box()
    assert before and after and after["width"] > 4 * before["width"]
    for words in (PROMPTS[0], "Reward", "Seed", ".png"):
        expect(enlarged).to_contain_text(words)
    assert page.evaluate(SERIOUS) == []
    page.keyboard.press("Escape")
    expect(enlarged).to_be_hidden()
    expect(thumbnail).to_be_focused()
    assert errors.unexpected == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_has_no_serious_finding_and_fits_the_screen(
    page: Page, address: str, painted: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{address}/runs/{painted}/rollouts?iteration=2")
        assert page.evaluate(SERIOUS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
