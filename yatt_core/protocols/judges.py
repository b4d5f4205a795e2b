"""The protocol that judges implement, and the plain data passed through it.

A judge takes responses and scores each one as often as requested. Judging and computing the value of a reward
part are two steps: verdicts are logged before they are used, and `aggregate` always returns the same value for
the same verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

NO_ERROR = ""
UNPARSED = "unparsed"
CUT = "cut"
"""Why a judgement has no score: it cannot be read, or it was cut at its token limit."""


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """A response to be judged, once per seed.

    number: chosen by the caller, unique within a request.
    prompt: text of the task.
    response: text of the response, or of its last turn, depending on the part's `reads`.
    answer: the reference answer, if there is one.
    seeds: one per judgement, in 0 .. 2^64 - 1.
    steps: the steps of the response; empty unless the judge names wrong ones.
    thoughts, final: the thoughts of the response's last turn and the rest of it; empty unless the judge's template shows them.
    messages: role and text of each message of the conversation of which the prompt is the transcript; empty for a single
        question.
    """

    number: int
    prompt: str
    response: str
    answer: str | None
    seeds: tuple[int, ...]
    steps: tuple[str, ...] = ()
    thoughts: str = ""
    final: str = ""
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Responses that are judged together. An item is one unit of dispatch: its judgements stay together."""

    items: tuple[JudgeItem, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer of a judge.

    answer: its raw text; empty for a classifier.
    score: finite number parsed from the answer; None if it could not be parsed.
    tokens: number of tokens generated; 0 for a classifier.
    prompt_tokens: number of tokens read, including the template.
    cut: whether the answer ended at its token limit instead of at its own end.
    """

    answer: str
    score: float | None
    tokens: int
    prompt_tokens: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """What it took to ask an endpoint about an item, over all of its judgements: telemetry, on which no result depends.

    seconds: of the judgement that took longest, from when it began until its answer, without `waited`.
    waited: seconds in which requests waited for a limit or because the endpoint asked for it.
    retries: requests after the first of each judgement.
    outcomes: number of requests by HTTP status, or by `timeout`, `unreachable` or `malformed`.
    latencies: seconds of each request that was answered.
    tokens, prompt_tokens: written and read, as counted by the endpoint.
    cost: by the part's prices; None without prices.
    """

    seconds: float
    waited: float
    retries: int
    outcomes: Mapping[str, int]
    latencies: tuple[float, ...]
    tokens: int
    prompt_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class ScoreEffort:
    """What it took to get one score from an endpoint (class timing).

    seconds, waited: as in `Effort`.
    cost: by the part's prices; None without prices.
    """

    part: str
    prompt_ordinal: int
    prompt_id: str
    sample: int
    seconds: float
    waited: float
    retries: int
    tokens: int
    prompt_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's result for one item.

    number: the item's number.
    judgements: one per seed, in the order of the seeds; empty if `error` is set.
    error: empty, or why the judge can never judge this item, as failure class and reason, such as `data: the prompt
        has ...`.
    effort: what it took; None unless it has just come from an endpoint. It is not kept with the verdict.
    """

    number: int
    judgements: tuple[Judgement, ...]
    error: str = NO_ERROR
    effort: Effort | None = field(default=None, compare=False)


class Judge(Protocol):
    """A judge. The caller makes one call at a time; only an endpoint's judge accepts concurrent calls.

    capabilities: `deterministic` (a verdict depends only on the item), `batch_invariant` (a verdict does not depend
        on the other items of its request; all deterministic judges in YATT are also batch-invariant).
    """

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Its capabilities, by name."""
        ...

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Yields verdicts in pieces as they finish, each item once and in any order; a piece may be empty.

        Raises `ConfigurationError` if retrying cannot help (a rejected key, an unknown model),
        `InfrastructureError` if the judge is unreachable, and `NumericError` if a model's logits are not finite.
        """
        ...

    def sleep(self) -> None:
        """Frees as much memory as possible between two calls; the next call wakes the judge, with unchanged results."""
        ...

    def wake(self) -> None:
        """Takes the freed memory again, so that the next call need not; does nothing while the judge is awake."""
        ...


class Aggregated(Protocol):
    """The fields of a reward part that `aggregate` reads."""

    @property
    def aggregate(self) -> str:
        """`mean`, `median`, `min`, `max` or `vote`."""
        ...

    @property
    def on_unparsed(self) -> str:
        """What a judgement without a score does: `absent`: it does not count; without any, the part has no value.

        `zero`: it counts as 0. `error`: the whole verdict fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartValue:
    """What a part makes of a verdict.

    value: unweighted; 0 if there is none.
    reason: why there is no value; empty if there is one.
    cause: of a missing value: a failure class such as `infrastructure`, or `UNPARSED` or `CUT`.
    absent: whether the judge answered, but gave no score, which is no failure.
    """

    value: float
    reason: str = NO_ERROR
    cause: str = NO_ERROR
    absent: bool = False


def aggregate(part: Aggregated, verdict: Verdict) -> PartValue:
    """Returns the part's value for the judged response, which depends only on part and verdict.

    The part's `on_failure` determines what happens without a value, unless that is absent.
    """
    if verdict.error:
        return PartValue(0.0, verdict.error, verdict.error.partition(":")[0])
    if not verdict.judgements:
        return PartValue(0.0, "data: the judge returned no judgement", "data")
    scores = []
    unread = [judgement for judgement in verdict.judgements if judgement.score is None]
    for place, judgement in enumerate(verdict.judgements):
        if judgement.score is None and part.on_unparsed == "error":
            total = len(verdict.judgements)
            reason = f"data: judgement {place + 1} of {total} {_unread(judgement)}"
            return PartValue(0.0, reason, cause_of(judgement))
        if judgement.score is not None:
            scores.append(judgement.score)
        elif part.on_unparsed == "zero":
            scores.append(0.0)
    if not scores:
        return PartValue(0.0, f"no score: the judgement {_unread(unread[0])}", cause_of(unread[0]), absent=True)
    return PartValue(_combined(part.aggregate, scores))


def cause_of(judgement: Judgement) -> str:
    """Returns why a judgement has no score."""
    return CUT if judgement.cut else UNPARSED


def _combined(how: str, scores: list[float]) -> float:
    """Combines several scores into one.

    `mean` rounds once; `vote` returns the most frequent score, or the lowest score in a tie.
    """
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
            raise ValueError(f"aggregate: unknown method {how!r}; expected one of mean, median, min, max, vote")


def _unread(judgement: Judgement) -> str:
    what = "was cut at its limit" if judgement.cut else "could not be parsed"
    return f"{what}: {_shown(judgement.answer)}"


def _shown(answer: str) -> str:
    """Returns an answer for a message: quoted and shortened."""
    return repr(answer if len(answer) <= 80 else f"{answer[:77]}...")
