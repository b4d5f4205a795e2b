"""What scores of judges behind an endpoint took: the slowest and the dearest of some iterations.

Consumes the telemetry files of the iterations of a run's line, which are not verified: what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from db.ledger import Ledger
from flows.run.home import Home
from ops.presentation.columns import Cell, Column, Columns, LinkCell, Medium
from yatt_core.experience.telemetry import SCORES, read_telemetry
from yatt_core.judges.effort import dearest, slowest
from yatt_core.protocols.judges import ScoreEffort

_SCORES = TypeAdapter(ScoreEffort)


@dataclass(frozen=True, slots=True)
class CostlyScores:
    """The slowest and the dearest scores of some iterations.

    first, last: the iterations.
    slowest, dearest: scores as plain values, each with its iteration; the worst first.
    """

    run: str
    first: int
    last: int
    slowest: tuple[dict[str, Any], ...]
    dearest: tuple[dict[str, Any], ...]


def costly_scores(
    ledger: Ledger, home: Home, run: str, first: int, last: int, part: str | None = None, limit: int = 10
) -> CostlyScores:
    """Returns the slowest and the dearest scores.

    first, last: the iterations, both included.
    part: only the scores of this reward part.
    limit: maximum number of each.

    Raises `RunNotFound`.
    """
    found: dict[ScoreEffort, int] = {}
    for iteration in range(max(1, first), last + 1):
        own = {effort: iteration for effort in _scores_of(ledger, home, run, iteration) if part in (None, effort.part)}
        found.update(own)
    return CostlyScores(
        run=run,
        first=first,
        last=last,
        slowest=tuple({"iteration": found[effort], **asdict(effort)} for effort in slowest(found, limit)),
        dearest=tuple({"iteration": found[effort], **asdict(effort)} for effort in dearest(found, limit)),
    )


def _scores_of(ledger: Ledger, home: Home, run: str, iteration: int) -> list[ScoreEffort]:
    """Returns the scores that an iteration's telemetry has kept."""
    owner, branch, _ = ledger.commits.maker(run, iteration)
    scores = []
    for name, shards in read_telemetry(home.run_folder(owner), branch, iteration).items():
        entries = shards.values() if name.startswith("collect.") else ()
        for values in (one for entry in entries if isinstance(entry, dict) for one in entry.get(SCORES) or ()):
            try:
                scores.append(_SCORES.validate_python(values))
            except ValidationError:
                continue
    return scores


Score = Mapping[str, Any]


def score_columns(address: Callable[[int], str] | None = None) -> Columns[Score]:
    """Returns the columns of scores.

    address: returns the address of a prompt's samples on a page.
    """

    def prompt(score: Score) -> Cell:
        number = score["prompt_ordinal"]
        return str(number) if address is None else LinkCell(str(number), address(number))

    return (
        Column("iteration", lambda score: str(score["iteration"]), number=True, medium=Medium.TERMINAL),
        Column("part", lambda score: score["part"]),
        Column("prompt", prompt, number=True),
        Column("id", lambda score: score["prompt_id"], style="break"),
        Column("sample", lambda score: str(score["sample"]), number=True),
        Column("seconds", lambda score: f"{score['seconds']:.2f}", number=True),
        Column("waited", lambda score: f"{score['waited']:.2f}", number=True),
        Column("retries", lambda score: score["retries"], number=True),
        Column("tokens read", lambda score: score["prompt_tokens"], number=True),
        Column("tokens written", lambda score: score["tokens"], number=True),
        Column("cost", lambda score: "unknown" if score["cost"] is None else f"{score['cost']:.6f}", number=True),
    )
