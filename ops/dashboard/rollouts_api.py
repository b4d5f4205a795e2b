"""The API's routes for samples: searched, grouped by prompt, and compared between iterations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from ops.queries import groups, rollout_comparison, rollouts
from ops.queries.sample_filters import PROMPT_ORDER, Selection
from ops.web.context import Iteration, Offset, RunId, SearchText, Served
from ops.web.texts import Like, Text

router = APIRouter(prefix="/api/v1/runs/{run_id}/rollouts", tags=["rollouts"])
CONDITIONS = 10
Condition = Annotated[
    Text,
    Like(r"^[^<>=!\x00]+(!=|<=|>=|=|<|>)[^\x00]*$", "NAME OPERATOR VALUE, such as reward >= 0.5 or finish = length"),
]
Limit = Annotated[int, Query(ge=1, le=100, description="Maximum number of samples or groups.")]
Characters = Annotated[int, Query(ge=1, le=rollouts.CHARACTERS, description="Maximum length of each text.")]


def selection(
    text: SearchText = "",
    prompt: Annotated[int | None, Query(ge=0, le=2**53, description="Ordinal of the prompt.")] = None,
    where: Annotated[
        list[Condition] | None, Query(max_length=CONDITIONS, description="Conditions; all must hold.")
    ] = None,
    order: Annotated[
        Text, Query(description="`prompt`, or a number such as reward, advantage, tokens or a part.")
    ] = PROMPT_ORDER,
    ascending: Annotated[bool, Query(description="Whether small numbers come first.")] = False,
) -> Selection:
    """Returns what a request selects."""
    return Selection(text=text, prompt=prompt, where=tuple(where or ()), order=order, ascending=ascending)


Selected = Annotated[Selection, Depends(selection)]


@router.get("/{iteration}")
def list_rollouts(
    served: Served,
    run_id: RunId,
    iteration: Iteration,
    wanted: Selected,
    limit: Limit = 20,
    offset: Offset = 0,
    characters: Characters = 2_000,
) -> rollouts.Rollouts:
    """Searches, filters and sorts the samples of an iteration."""
    return rollouts.rollouts(
        ledger=served.ledger,
        home=served.home,
        run=run_id,
        iteration=iteration,
        wanted=wanted,
        limit=limit,
        offset=offset,
        characters=characters,
    )


@router.get("/{iteration}/groups")
def list_groups(
    served: Served,
    run_id: RunId,
    iteration: Iteration,
    wanted: Selected,
    limit: Limit = 10,
    offset: Offset = 0,
    characters: Characters = 2_000,
) -> groups.Groups:
    """Lists the prompts of an iteration that have a matching sample, each with all its samples."""
    return groups.groups(
        ledger=served.ledger,
        home=served.home,
        run=run_id,
        iteration=iteration,
        wanted=wanted,
        limit=limit,
        offset=offset,
        characters=characters,
    )


@router.get("/{before}/compare/{after}")
def compare_iterations(
    served: Served, run_id: RunId, before: Iteration, after: Iteration
) -> rollout_comparison.RolloutComparison:
    """Compares the rewards of two iterations, and the prompts that both of them sampled."""
    return rollout_comparison.comparison(
        *rollout_comparison.read_both(ledger=served.ledger, home=served.home, run=run_id, before=before, after=after)
    )


@router.get("/{before}/compare/{after}/groups")
def compare_groups(
    served: Served,
    run_id: RunId,
    before: Iteration,
    after: Iteration,
    wanted: Selected,
    limit: Limit = 10,
    offset: Offset = 0,
    characters: Characters = 2_000,
) -> rollout_comparison.GroupPairs:
    """Lists prompts of iteration `after` beside the same or the most similar prompt of iteration `before`."""
    other, rows = rollout_comparison.read_both(
        ledger=served.ledger, home=served.home, run=run_id, before=before, after=after
    )
    return rollout_comparison.group_pairs(
        ledger=served.ledger,
        home=served.home,
        other=other,
        rows=rows,
        wanted=wanted,
        limit=limit,
        offset=offset,
        characters=characters,
    )
