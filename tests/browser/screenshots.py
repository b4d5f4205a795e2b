"""Takes a picture of every page, light and dark, wide and narrow: `python -m tests.browser.screenshots --home runs --to shots`.

Consumes a home folder; produces PNG files named PAGE-SCHEME-WIDTH.png. Pages about one run show the one given by
`--run`, by default the newest; `--judged` names a run whose devices judge, for the page of devices.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as TookTooLong

from db.ledger import Ledger
from flows.run.home import Home
from tests.browser.dashboard import NARROW, WIDE, Outside, served, started_chromium
from tests.browser.install import find_chromium

CHARTED = ("run", "devices", "compare")


def pages_of(home: Home, run: str | None, judged: str | None) -> dict[str, str]:
    """Returns the address of each page by its name."""
    with Ledger.open(home.ledger, migrate=False) as ledger:
        runs = ledger.runs.list(limit=8)
        chosen = ledger.runs.find(run) if run else runs[0]
    other = next((row.id for row in runs if row.id != chosen.id), chosen.id)
    place = f"/runs/{chosen.id}"
    last = max(1, chosen.iteration)
    return {
        "run list": "/",
        "run": place,
        "spec": f"{place}/spec",
        "devices": f"/runs/{judged or chosen.id}/devices",
        "rollouts": f"{place}/rollouts?iteration={last}&against={max(1, last // 2)}&order=reward",
        "checkpoints": f"{place}/checkpoints",
        "faults": f"{place}/faults",
        "logs": f"{place}/logs",
        "lineage": f"{place}/lineage",
        "compare": f"/compare?run={chosen.id}&run={other}",
        "new": f"/new?run={chosen.id}",
        "sign-in": "/sign-in",
    }


def take_all(browser: Browser, address: str, pages: dict[str, str], folder: Path, names: Sequence[str]) -> None:
    """Takes the pictures of the named pages, or of all pages if no names are given."""
    for width, height in (WIDE, NARROW):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            for name, path in pages.items():
                if not names or name in names:
                    take(context.new_page(), address + path, name, folder / f"{name}-{scheme}-{width}.png")
            context.close()


def take(page: Page, address: str, name: str, file: Path) -> None:
    """Takes one picture of a whole page."""
    page.goto(address)
    if name in CHARTED:
        try:
            page.wait_for_selector("html[data-charts=drawn]", state="attached")
        except TookTooLong:
            sys.stderr.write(f"{name}: its charts were not drawn in time\n")
    page.screenshot(path=file, full_page=True)
    page.close()


def main() -> int:
    """Takes the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--run")
    parser.add_argument("--judged")
    parser.add_argument("pages", nargs="*", help="Some pages by their names; all if none is given.")
    arguments = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        parser.error("there is no browser here; `python -m tests.browser.install` installs one where it may")
    home = Home(arguments.home.resolve())
    arguments.to.mkdir(parents=True, exist_ok=True)
    pages = pages_of(home, arguments.run, arguments.judged)
    outside = Outside()
    with served(home.folder) as address, started_chromium(chromium, outside) as browser:
        take_all(browser, address, pages, arguments.to, arguments.pages)
    outside.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
