"""The protocol that every judge keeps, and the plain data that crosses it.

A judge takes responses and says what each is worth, as often as it is asked. What it said, and what that makes of a reward
part, are two steps: verdicts are logged before they are used, and `aggregate` gives the same value for the same verdict at
any time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

NO_ERROR = ""


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """One response to be judged, as often as it has seeds.

    number: the caller's, unique within a request. prompt: text of the task. response: text of the response, or of its last
    turn, as the part's `reads` says. answer: the reference answer, if there is one. seeds: one a judgement, in 0 .. 2^64 - 1.
    """

    number: int
    prompt: str
    response: str
    answer: str | None
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Responses that are judged together. An item is one unit of dispatch: its judgements stay together."""

    items: tuple[JudgeItem, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer of a judge.

    answer: its raw text; empty for a classifier. score: what was read from it, a finite number; None where it could not be
    parsed. tokens: generated, 0 for a classifier. prompt_tokens: read, the template included.
    """

    answer: str
    score: float | None
    tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said of one item.

    number: the item's. judgements: one a seed, in the order of the seeds; none where `error` is set. error: empty, or why the
    judge cannot judge this item however often it is asked: failure class and reason, such as `data: the prompt has ...`.
    """

    number: int
    judgements: tuple[Judgement, ...]
    error: str = NO_ERROR


class Judge(Protocol):
    """Judges. One call at a time, the caller serialises; an endpoint's judge alone takes any number at once.

    capabilities: `deterministic` (a verdict is a function of the item alone), `batch_invariant` (it does not depend on the
    other items of its request; all judges here that are deterministic are that too).
    """

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """What it can do, by name."""
        ...

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Verdicts in pieces as they are finished, every item once, in any order; a piece may be empty.

        Raises `ConfigurationError` for what no repetition mends (a refused key, an unknown model), `InfrastructureError` for a
        judge that is out of reach, `NumericError` for a model whose logits are not finite.
        """
        ...

    def sleep(self) -> None:
        """Gives back, between two calls, what memory it can; the next call wakes it, and nothing that it answers changes."""
        ...


class Aggregated(Protocol):
    """What `aggregate` reads of a part of the spec."""

    @property
    def aggregate(self) -> str:
        """`mean`, `median`, `min`, `max` or `vote`."""
        ...

    @property
    def on_unparsed(self) -> str:
        """`zero`: a judgement that cannot be parsed counts as 0. `error`: it makes the verdict a failed one."""
        ...


def aggregate(part: Aggregated, verdict: Verdict) -> tuple[float, str]:
    """Value of the part for the judged response, before its weight; and the reason if it failed (the value is then 0).

    What a reason leads to is the part's `on_error`. A function of part and verdict alone.
    """
    if verdict.error:
        return 0.0, verdict.error
    if not verdict.judgements:
        return 0.0, "data: the judge gave no judgement"
    scores = []
    for place, judgement in enumerate(verdict.judgements):
        if judgement.score is None and part.on_unparsed == "error":
            total = len(verdict.judgements)
            return 0.0, f"data: judgement {place + 1} of {total} could not be parsed: {_shown(judgement.answer)}"
        scores.append(0.0 if judgement.score is None else judgement.score)
    return _combined(part.aggregate, scores), NO_ERROR


def _combined(how: str, scores: list[float]) -> float:
    """One number of several. mean: rounded once. vote: the score that most judgements gave; of those tied the lowest."""
    match how:
        case "mean":
            return statistics.fmean(scores)
        case "median":
            return statistics.median(scores)
        case "min":
            return min(scores)
        case "max":
            return max(scores)
        case "vote":
            return min(statistics.multimode(scores))
        case _:
            raise ValueError(f"aggregate: unknown {how!r}; known: mean, median, min, max, vote")


def _shown(answer: str) -> str:
    """An answer for a message: quoted, its beginning."""
    return repr(answer if len(answer) <= 80 else f"{answer[:77]}...")
