"""Self-contained HTML pages around inline SVG: no network access, light and dark themes, arrow-key navigation.

Consumes markup whose texts have been escaped with `text`; produces a page. The arrow keys move through elements of class
`item`, whose `aria-label` is shown below the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

LEFT = 60
WIDTH = 1000
"""Left margin for names, and total width of a picture, in SVG units."""
MOST_TICKS = 8

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #6b7280; --line: #d5d9e0;
  --first: #2b6cb0; --second: #c05621; --third: #6b7280; --fourth: #2f855a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #14171b; --faint: #9aa3af; --line: #343a42;
  --first: #63a4e8; --second: #eda05f; --third: #9aa3af; --fourth: #68c08f; } }
body { margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; } p { margin: .25rem 0 .75rem; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--faint); }
.first { fill: var(--first); } .second { fill: var(--second); } .third { fill: var(--third); }
.fourth { fill: var(--fourth); } .band { opacity: .32; }
.grid { stroke: var(--line); stroke-width: 1; } .item { outline: none; } .halo { fill: none; stroke: none; }
.item:focus .halo { stroke: var(--ink); stroke-width: 1.5; }
output { display: block; min-height: 1.5em; margin: .5rem 0; } .key { white-space: nowrap; margin-right: 1.25em; }
.key svg { display: inline; width: 1em; height: .8em; margin-right: .4em; }
table { border-collapse: collapse; margin: .75rem 0; } caption { text-align: left; color: var(--faint); }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } summary { cursor: pointer; }
"""
_SCRIPT = """
const items = [...document.querySelectorAll(".item")], told = document.querySelector("output");
const steps = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -items.length, End: items.length};
items.forEach((item, at) => {
  item.setAttribute("tabindex", at ? "-1" : "0");
  const tell = () => { told.textContent = item.getAttribute("aria-label"); };
  item.addEventListener("mouseenter", tell);
  item.addEventListener("focus", tell);
  item.addEventListener("keydown", event => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = items[Math.min(items.length - 1, Math.max(0, at + steps[event.key]))];
    item.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
});
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def text(value: object) -> str:
    """Escapes a value for use in markup and in attributes."""
    return escape(str(value), quote=True)


def page(title: str, summary: str, keys: Sequence[tuple[str, str]], picture: str, below: str) -> str:
    """Returns a page.

    keys: CSS class and meaning of each colour.
    picture, below: markup.
    """
    legend = "".join(
        f'<span class="key"><svg viewBox="0 0 10 8" aria-hidden="true"><rect class="{text(kind)}" width="10" height="8"/>'
        f"</svg>{text(meaning)}</span>"
        for kind, meaning in keys
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f"<h1>{text(title)}</h1><p>{text(summary)}</p><p>{legend}</p>\n{picture}\n"
        '<output aria-live="polite">Use the arrow keys to move through the picture.</output>\n'
        f"{below}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def scale_of(longest: float) -> float:
    """Returns the SVG units per second if the picture's width shows `longest` seconds."""
    return (WIDTH - LEFT) / longest if longest else 0.0


def picture(label: str, longest: float, bottom: float, rows: str) -> str:
    """Returns a picture over an axis from 0 to `longest` seconds.

    bottom: the y coordinate at which the rows end.
    rows: markup.
    """
    marks = [(at, LEFT + at * scale_of(longest)) for at in ticks(longest)]
    axis = "".join(
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'
        f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{at:g} s</text>'
        for at, x in marks
    )
    return f'<svg viewBox="0 0 {WIDTH + 20} {bottom + 20}" role="group" aria-label="{text(label)}">{axis}{rows}</svg>'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with a caption."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{text(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def ticks(longest: float) -> list[float]:
    """Returns round numbers from 0 to at most `longest`, for an axis."""
    if longest <= 0:
        return [0.0]
    step = 10.0 ** (len(f"{int(longest)}") - 1) if longest >= 1 else 10.0**-3
    while longest / step > MOST_TICKS:
        step *= 2
    while longest / step < MOST_TICKS / 2.5:
        step /= 2
    return [step * number for number in range(int(longest / step) + 1)]
