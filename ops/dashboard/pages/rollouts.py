"""The rollouts page: an iteration's samples by prompt or one by one, two iterations side by side, and scores that took long.

Of a workload of one's own: the images of its samples over iterations, and the columns that an iteration learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from ops.dashboard.pages.images import image_url
from ops.dashboard.pages.pictures import histogram
from ops.dashboard.pages.run import OptionalNumber, number_of
from ops.queries.columns import COLUMN_FACTS, cells_of, is_language
from ops.queries.experience import Validity
from ops.queries.groups import CORRECT, SPREAD, Groups, group_page, grouped_rows
from ops.queries.images import by_prompt, image_grid
from ops.queries.own_iterations import OwnIteration, own_iteration
from ops.queries.rollout_comparison import (
    SUMMARIES,
    GroupPairs,
    RolloutComparison,
    comparison,
    group_pairs,
    shared_columns,
)
from ops.queries.rollouts import Rollouts, sample_page
from ops.queries.sample_filters import PROMPT_ORDER, Selection
from ops.queries.score_efforts import costly_scores, score_columns
from ops.web.context import Offset, RunId, SearchText
from ops.web.formats import run_url
from ops.web.frame import Visit, Visited
from ops.web.texts import Like, Text, one_of
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.table import FINISH_LENGTH, FINISH_STOP, FINISH_TOOL, FINISH_TURNS

router = APIRouter(prefix="/runs/{run_id}", include_in_schema=False)
BY_PROMPT = "prompts"
BY_SAMPLE = "samples"
VIEWS = ((BY_PROMPT, "by prompt"), (BY_SAMPLE, "one by one"))
PER_PAGE = {BY_PROMPT: 10, BY_SAMPLE: 20}
SHORT = 2_000
LONG = 50_000
"""Maximum length of a text in a list, and when one prompt is chosen, in characters."""
ORDER_WORDS = {
    PROMPT_ORDER: "prompt",
    SPREAD: "spread of rewards",
    CORRECT: "fraction correct",
    "tokens": "length in tokens",
}
Choice = Annotated[str, Like(r"^(|yes|no)$", "yes, no or nothing")]
Finish = Annotated[str, one_of(("", FINISH_STOP, FINISH_LENGTH, FINISH_TURNS, FINISH_TOOL))]
ValidityChoice = Annotated[str, one_of(("", *Validity))]


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """The values of the form; those that are empty or False are left out of addresses."""

    iteration: int
    view: str
    text: str
    prompt: int | None
    correct: str
    finish: str
    validity: str
    where: str
    order: str
    ascending: bool
    against: int | None

    @property
    def selection(self) -> Selection:
        """What the form selects."""
        chosen = {"correct": self.correct, "finish": self.finish, "validity": self.validity}
        written = [part.strip() for part in self.where.split(",") if part.strip()]
        conditions = (*written, *(f"{name} = {value}" for name, value in chosen.items() if value))
        return Selection(
            text=self.text, prompt=self.prompt, where=conditions, order=self.order, ascending=self.ascending
        )

    def address(self, run: str, **changes: object) -> str:
        """Returns the address of the page with some values changed."""
        values = (asdict(self) | changes).items()
        # Prompt 0 stays, although 0 == False.
        given = {name: value for name, value in values if value is not False and value != ""}
        return run_url(run, "rollouts", **given)


def asked_of(
    iteration: OptionalNumber = "",
    view: Annotated[str, one_of((BY_PROMPT, BY_SAMPLE))] = BY_PROMPT,
    text: SearchText = "",
    prompt: OptionalNumber = "",
    correct: Choice = "",
    finish: Finish = "",
    validity: ValidityChoice = "",
    where: Text = "",
    order: Text = PROMPT_ORDER,
    ascending: bool = False,
    against: OptionalNumber = "",
) -> RolloutQuery:
    """Returns the values of the form."""
    return RolloutQuery(
        iteration=number_of(iteration) or 0,
        view=view,
        text=text,
        prompt=number_of(prompt),
        correct=correct,
        finish=finish,
        validity=validity,
        where=where,
        order=order,
        ascending=ascending,
        against=number_of(against),
    )


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The iterations that a grid of images spans. last: None for the newest."""

    first: int
    last: int | None


def span_of(first: OptionalNumber = "", last: OptionalNumber = "") -> ImageSpan:
    """Returns the values of the form of the grid."""
    return ImageSpan(max(1, number_of(first) or 1), number_of(last))


@dataclass(slots=True)
class RolloutsContent:
    """What could be read, and the error that prevented the rest."""

    page: Groups | Rollouts | None = None
    pairs: GroupPairs | None = None
    comparison: RolloutComparison | None = None
    problem: str = ""


@router.get("/rollouts")
def show_rollouts(
    visit: Visited,
    run_id: RunId,
    given: Annotated[RolloutQuery, Depends(asked_of)],
    span: Annotated[ImageSpan, Depends(span_of)],
    offset: Offset = 0,
) -> Response:
    """Shows an iteration's samples, by default the newest committed one's, by prompt, or a workload's images and columns."""
    run = visit.find(run_id)
    if not is_language(visit.served.ledger, run_id):
        return _columns(visit, run_id, given.iteration or max(1, run.iteration), span)
    asked = RolloutQuery(**(asdict(given) | {"iteration": given.iteration or max(1, run.iteration)}))
    found = _read(visit, run_id, asked, offset)
    page = found.page
    number = asked.iteration
    shown = 0 if page is None else len(page.groups if isinstance(page, Groups) else page.samples)
    orders = (PROMPT_ORDER,) if page is None else page.orders
    return visit.render_run(
        "rollouts.html",
        run,
        "rollouts",
        asked=asked,
        views=VIEWS,
        orders=[(name, ORDER_WORDS.get(name, name)) for name in dict.fromkeys((*orders, asked.order))],
        directions=[("false", "largest first"), ("true", "smallest first")],
        finishes=_choices((FINISH_STOP, FINISH_LENGTH, FINISH_TURNS, FINISH_TOOL)),
        validities=_choices(tuple(each.value for each in Validity)),
        newest=max(1, run.iteration + 1),
        page=page,
        shown=shown,
        pairs=found.pairs,
        comparison=found.comparison,
        histogram=histogram(found.comparison) if found.comparison else None,
        problem=found.problem,
        efforts=costly_scores(visit.served.ledger, visit.served.home, run_id, first=number, last=number),
        score_columns=score_columns(lambda prompt: asked.address(run_id, prompt=prompt)),
        summaries=SUMMARIES,
        shared_columns=shared_columns(found.comparison, lambda prompt: asked.address(run_id, prompt=prompt)),
        **_turns(run=run_id, asked=asked, page=page, offset=offset, shown=shown),
    )


def _columns(visit: Visit, run_id: str, iteration: int, span: ImageSpan) -> Response:
    """Shows what an iteration of a workload of one's own learnt from, and the images of its samples over iterations."""
    run = visit.find(run_id)
    ledger = visit.served.ledger
    home = visit.served.home
    grid = image_grid(ledger=ledger, home=home, run=run_id, first=span.first, last=span.last)
    found: OwnIteration | None = None
    problems: tuple[str, ...] = ()
    try:
        found = own_iteration(ledger, home, run_id, iteration)
        problems = found.problems
    except ConfigurationError as error:
        problems = (str(error),)
    tables = {} if found is None else found.tables
    return visit.render_run(
        "columns.html",
        run,
        "rollouts",
        iteration=iteration,
        newest=max(1, run.iteration + 1),
        columns=[] if found is None else found.columns,
        column_facts=COLUMN_FACTS,
        tables=[(title, cells_of(table), table.rows) for title, table in tables.items()],
        grid=grid,
        span=span,
        images=[] if found is None else by_prompt(found.images),
        image_url=image_url,
        problems=problems,
    )


def _turns(run: str, asked: RolloutQuery, page: Groups | Rollouts | None, offset: int, shown: int) -> Mapping[str, Any]:
    """Returns the addresses of the pages before and after."""
    size = PER_PAGE[asked.view]
    more = page is not None and offset + shown < page.matching
    return {
        "earlier": asked.address(run, offset=max(0, offset - size)) if offset else None,
        "later": asked.address(run, offset=offset + size) if more else None,
    }


def _choices(names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("", "all"), *((name, name) for name in names)]


def _read(visit: Visit, run: str, asked: RolloutQuery, offset: int) -> RolloutsContent:
    """Reads the samples and the comparison."""
    ledger = visit.served.ledger
    home = visit.served.home
    found = RolloutsContent()
    limit = PER_PAGE[asked.view]
    characters = SHORT if asked.prompt is None else LONG
    wanted = asked.selection
    number = asked.iteration
    try:
        rows = grouped_rows(ledger, home, run, number)
        if asked.view == BY_SAMPLE:
            found.page = sample_page(
                ledger=ledger,
                home=home,
                place=rows.place,
                table=rows.table,
                wanted=wanted,
                limit=limit,
                offset=offset,
                characters=characters,
            )
        elif asked.against is None:
            found.page = group_page(
                ledger=ledger, home=home, found=rows, wanted=wanted, limit=limit, offset=offset, characters=characters
            )
        if asked.against is not None:
            other = grouped_rows(ledger, home, run, asked.against)
            found.comparison = comparison(other, rows)
            if found.page is None:
                found.pairs = group_pairs(
                    ledger=ledger,
                    home=home,
                    other=other,
                    rows=rows,
                    wanted=wanted,
                    limit=limit,
                    offset=offset,
                    characters=characters,
                )
                found.page = found.pairs.after
    except (ConfigurationError, DataError) as error:
        found.problem = str(error)
    return found
