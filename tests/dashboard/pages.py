"""Parses pages as browsers do, and checks what must hold for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from tinyhtml5.parser import HTMLParser

BROWSER = {"Accept": "text/html"}
HTML = "{http://www.w3.org/1999/xhtml}"
ADDRESSES = {"a": "href", "form": "action", "link": "href", "script": "src", "img": "src"}
REFERENCES = ("aria-labelledby", "data-opens", "data-walk", "list", "for")
FORBIDDEN = {"style", "iframe", "object", "embed", "base"}


def parsed(text: str) -> Element:
    """Parses a page. Fails if browsers would have to repair its markup."""
    parser = HTMLParser()
    tree: Element = parser.parse(text)
    assert parser.errors == []
    return tree


def parsed_part(text: str) -> Element:
    """Parses a fragment of a page as a whole page."""
    return parsed(f"<!doctype html><title>part</title>{text}")


def check_page(text: str) -> Element:
    """Checks the rules that hold for every page."""
    tree = parsed(text)
    elements = [element for element in tree.iter() if isinstance(element.tag, str)]
    ids = [element.attrib["id"] for element in elements if "id" in element.attrib]
    assert len(ids) == len(set(ids)), "two elements share an id"
    for element in elements:
        name = element.tag.removeprefix(HTML)
        assert name not in FORBIDDEN
        assert name != "script" or (element.attrib["src"].startswith("/static/") and not element.text)
        assert not [key for key in element.attrib if key == "style" or key.startswith(("on", "hx-on"))]
        if name in ADDRESSES and (address := element.attrib.get(ADDRESSES[name])):
            assert address.startswith(("/", "#")) and not address.startswith("//"), address
        for reference in REFERENCES:
            assert element.attrib.get(reference, ids[0]) in ids, f"{reference} refers to no element"
    assert len(list(tree.iter(f"{HTML}h1"))) == 1
    return tree


def words(tree: Element) -> str:
    """Returns all text of a page on one line."""
    return " ".join("".join(tree.itertext()).split())


def links(tree: Element) -> Iterator[str]:
    """Yields the targets of all links on a page."""
    for element in tree.iter(f"{HTML}a"):
        yield element.attrib["href"]
