"""The documentation site: it builds without warnings, is complete and self-contained, and reports dead links."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")
IN_STYLES = re.compile(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)")


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site as `make docs` does."""
    command = re.search(r"-m (sphinx .*) -d ", (ROOT / "Makefile").read_text())
    assert command is not None
    arguments = [*command[1].split(), "-d", str(site.parent / "cache"), str(docs), str(site)]
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Writes a project with the site's settings, a README and one page."""
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "_static", docs / "_static")
    for name in ("docs/conf.py", "pyproject.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "README.md").write_text(
        "# Small\n\n[a page](docs/page.md#part), [a file](pyproject.toml), [a folder](docs/)\n"
    )
    (docs / "index.md").write_text("```{include} ../README.md\n```\n\n```{toctree}\npage\n```\n")
    (docs / "page.md").write_text("# Page\n\n## Part\n\n[home](../README.md)\n")
    return docs


def test_every_page_is_in_the_site(site: Path):
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert pages == {path.relative_to(site) for path in site.rglob("*.html")} - {Path("search.html")}
    assert (site / "searchindex.js").exists()


def test_no_page_loads_anything_from_another_host(site: Path):
    found = [
        (path.name, address)
        for pattern, kind in ((LOADED, "*.html"), (IN_STYLES, "*.css"))
        for path in site.rglob(kind)
        for groups in pattern.findall(path.read_text())
        for address in ([groups] if isinstance(groups, str) else groups)
        if address
    ]
    assert len(found) > 100, "the patterns find what pages load"
    assert [(page, address) for page, address in found if re.match(r"(?!data:)\w+:|//", address)] == []


def test_links_of_the_repository_hold_in_the_site(small: Path, tmp_path: Path):
    done = build(small, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert 'href="page.html#part"' in home and "/pyproject.toml" in home and "a folder" in home
    assert 'href="index.html"' in (tmp_path / "site" / "page.html").read_text()


def test_a_link_without_a_target_fails_the_build(small: Path, tmp_path: Path):
    targets = ["nothing.md", "page.md#nowhere", "../nothing.yaml"]
    (small / "page.md").write_text("# Page\n\n## Part\n\n" + "".join(f"[nothing]({target})\n" for target in targets))
    done = build(small, tmp_path / "site")
    assert done.returncode != 0
    assert [target for target in targets if target.split("#")[-1].removeprefix("../") not in done.stderr] == []
