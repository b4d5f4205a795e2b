"""The documentation site's settings: `make docs` has Sphinx build it from this folder into build/site.

Consumes the pages here and those of the repository's root, which `index.md`, `contributing.md` and `changelog.md` include.
Produces pages that load nothing from another host. A link without a target fails the build.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path, PurePath

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Pages of the repository's root, and the pages here that include them.
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(
    r"(?P<text>!?\[[^\]]*\])\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)"
    r'|(?P<source><img [^>]*src=")(?P<image>[^":]+)'
)

project = "YATT"
author = "the YATT authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
version = release

extensions = ["myst_parser"]
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
nitpicky = True

html_theme = "furo"
html_title = f"YATT {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def site_link(target: Path, page_folder: Path) -> str | None:
    """Returns the address, as seen from a page's folder, of a file that a link names; None if the site cannot show it."""
    inside = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
    if inside in ROOT_PAGES:
        target = DOCS / ROOT_PAGES[inside]
    return None if target.is_dir() else PurePath(os.path.relpath(target, page_folder)).as_posix()


def relink(text: str, written_for: Path, page_folder: Path) -> str:
    """Rewrites a page's relative links, which hold in the repository, so that they hold in the site; folders lose theirs."""

    def replace(found: re.Match[str]) -> str:
        link = site_link(Path(os.path.normpath(written_for / (found["path"] or found["image"]))), page_folder)
        if found["image"]:
            return f"{found['source']}{link}"
        return found["text"].strip("[]") if link is None else f"{found['text']}({link}{found['anchor'] or ''})"

    return LINK.sub(replace, text)


def relink_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Rewrites the links of a page of this folder."""
    folder = (DOCS / name).parent
    source[0] = relink(source[0], folder, folder)


def relink_included(app: Sphinx, path: Path, parent: str, source: list[str]) -> None:
    """Rewrites the links of a page of the repository's root, as the page that includes it needs them."""
    source[0] = relink(source[0], (DOCS / path).resolve().parent, (DOCS / parent).parent)


def setup(app: Sphinx) -> None:
    """Has Sphinx rewrite links as it reads."""
    app.connect("source-read", relink_page)
    app.connect("include-read", relink_included)
