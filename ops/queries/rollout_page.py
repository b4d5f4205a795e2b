"""What pages of samples and pages of groups have in common: where they come from, and how much was examined and matched.

Consumes an iteration and its table; produces the fields of `Page`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ops.queries.experience import IterationExperience, SampleTable


@dataclass(frozen=True, slots=True)
class Page:
    """A page of what matches a search in an iteration.

    total: number of samples in the iteration.
    seen: of these, the number examined.
    matching: number of examined samples that match; on a page of groups, number of groups with such a sample.
    parts: names of the reward parts.
    orders: names by which the page can be sorted.
    no_advantages, no_answers: why there are no advantages or reference answers; empty if there are.
    """

    run: str
    branch: int
    iteration: int
    committed: bool
    total: int
    seen: int
    matching: int
    offset: int
    parts: tuple[str, ...]
    orders: tuple[str, ...]
    no_advantages: str
    no_answers: str


def page_fields(
    place: IterationExperience, table: SampleTable, matching: int, offset: int, orders: tuple[str, ...], no_answers: str
) -> dict[str, Any]:
    """Returns the fields of `Page`."""
    page = Page(
        run=place.run,
        branch=place.branch,
        iteration=place.number,
        committed=place.committed,
        total=place.samples,
        seen=table.rows.num_rows,
        matching=matching,
        offset=offset,
        parts=table.parts,
        orders=orders,
        no_advantages=table.no_advantages,
        no_answers=no_answers,
    )
    return {field.name: getattr(page, field.name) for field in fields(page)}
