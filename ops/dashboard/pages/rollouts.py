"""The rollouts page: searches and sorts an iteration's samples, and compares two iterations."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fastapi import APIRouter
from starlette.responses import Response

from ops.dashboard.context import Offset, RunId, SearchText
from ops.dashboard.pages.frame import Visited
from ops.dashboard.pages.pictures import histogram
from ops.dashboard.pages.run import OptionalNumber, number_of
from ops.dashboard.pages.templating import run_url
from ops.queries.rollouts import Order, RolloutComparison, Rollouts, compare_rollouts, rollouts
from yatt_core.errors import ConfigurationError, DataError

router = APIRouter(prefix="/runs/{run_id}", include_in_schema=False)
PER_PAGE = 20
ORDERS = (
    (Order.PROMPT.value, "prompt and sample"),
    (Order.BEST.value, "highest reward first"),
    (Order.WORST.value, "lowest reward first"),
    (Order.LENGTH.value, "longest response first"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of the form."""

    iteration: int
    text: str
    prompt: int | None
    order: str
    against: int | None


@router.get("/rollouts")
def show_rollouts(
    visit: Visited,
    run_id: RunId,
    iteration: OptionalNumber = "",
    text: SearchText = "",
    prompt: OptionalNumber = "",
    order: Order = Order.PROMPT,
    against: OptionalNumber = "",
    offset: Offset = 0,
) -> Response:
    """Shows the samples of an iteration, by default the newest committed one."""
    run = visit.find(run_id)
    asked = Asked(
        number_of(iteration) or max(1, run.iteration), text, number_of(prompt), order.value, number_of(against)
    )
    found, comparison, problem = _read(visit, run_id, asked, offset)

    def beginning_at(other: int) -> str:
        given = {name: value for name, value in asdict(asked).items() if value not in (None, "")}
        return run_url(run_id, "rollouts", **given, offset=other)

    more = found is not None and offset + len(found.samples) < found.matching
    return visit.render_run(
        "rollouts.html",
        run,
        "rollouts",
        asked=asked,
        orders=ORDERS,
        newest=max(1, run.iteration + 1),
        found=found,
        comparison=comparison,
        histogram=histogram(comparison) if comparison else None,
        problem=problem,
        earlier=beginning_at(max(0, offset - PER_PAGE)) if offset else None,
        later=beginning_at(offset + PER_PAGE) if more else None,
    )


def _read(
    visit: Visited, run_id: str, asked: Asked, offset: int
) -> tuple[Rollouts | None, RolloutComparison | None, str]:
    """Returns the samples and the comparison, as far as they could be read, and the error that prevented the rest."""
    ledger, home = visit.served.ledger, visit.served.home
    found, comparison = None, None
    try:
        found = rollouts(
            ledger, home, run_id, asked.iteration, asked.text, asked.prompt, Order(asked.order), PER_PAGE, offset
        )
        if asked.against is not None:
            comparison = compare_rollouts(ledger, home, run_id, asked.against, asked.iteration)
    except (ConfigurationError, DataError) as error:
        return found, comparison, str(error)
    return found, comparison, ""
