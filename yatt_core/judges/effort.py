"""What it takes to ask endpoints: measured while a judgement is asked for, added up over a shard, and summarized.

Consumes requests as they end. Produces an `Effort`, sums by part that can be added in any order, and figures of them. All of it
is telemetry: no result depends on it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from yatt_core.judges.completion import ChatCompletion
from yatt_core.protocols.judges import Effort, ScoreEffort
from yatt_core.spec.rewards.addresses import TokenPrices

PREFIX = "endpoints"
"""First part of the keys of sums, and of the names of metrics."""
REQUESTS = "requests"
RETRIES = "retries"
WAITED = "waiting_seconds"
COST = "cost"
OUTCOME = "status"
LATENCY = "latency"
LATENCY_STEP = 1.05
"""Ratio of two neighboring classes of latencies, which is the largest relative error of a percentile."""
SHORTEST_SECONDS = 1e-4
"""Shorter latencies count as this one."""
PERCENTILES = (50, 95)
KEPT = 20
"""Number of the slowest and of the dearest scores that are kept of a shard, for each part."""


@dataclass(slots=True)
class JudgementMeter:
    """Measures one judgement.

    sent: when its newest request was sent, on the monotonic clock.
    """

    sent: float = 0.0
    waited: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    completion: ChatCompletion | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def stop(self) -> None:
        """Notes that the judgement is complete, or has failed."""
        self.seconds = max(0.0, time.monotonic() - self.began - self.waited)


def effort_of(meters: Iterable[JudgementMeter], prices: TokenPrices | None) -> Effort:
    """Returns what the judgements of an item took."""
    each = list(meters)
    answers = [meter.completion for meter in each if meter.completion is not None]
    tokens = sum(answer.tokens for answer in answers)
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    return Effort(
        seconds=max((meter.seconds for meter in each), default=0.0),
        waited=math.fsum(meter.waited for meter in each),
        retries=sum(max(0, meter.outcomes.total() - 1) for meter in each),
        outcomes=dict(sum((meter.outcomes for meter in each), Counter[str]())),
        latencies=tuple(seconds for meter in each for seconds in meter.latencies),
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        cost=None if prices is None else prices.cost_of(prompt_tokens, tokens),
    )


def add_effort(sums: dict[str, float], part: str, effort: Effort) -> None:
    """Adds an effort to the sums of its part."""
    own = {
        REQUESTS: float(sum(effort.outcomes.values())),
        RETRIES: float(effort.retries),
        WAITED: effort.waited,
        **({} if effort.cost is None else {COST: effort.cost}),
        **{f"{OUTCOME}/{outcome}": float(count) for outcome, count in effort.outcomes.items()},
    }
    for seconds in effort.latencies:
        key = f"{LATENCY}/{_class_of(seconds)}"
        own[key] = own.get(key, 0.0) + 1.0
    for key, value in own.items():
        whole = f"{PREFIX}/{part}/{key}"
        sums[whole] = sums.get(whole, 0.0) + value


def effort_figures(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns figures by name from sums: those that are sums, and percentiles of the latencies, in seconds."""
    figures: dict[str, float] = {}
    latencies: dict[str, dict[int, float]] = {}
    for key, value in sums.items():
        prefix, _, rest = key.partition("/")
        part, _, name = rest.partition("/")
        if prefix != PREFIX or not name:
            continue
        kind, _, which = name.partition("/")
        if kind != LATENCY:
            figures[key] = value
        elif which.isascii() and which.isdecimal():
            latencies.setdefault(part, {})[int(which)] = value
    for part, counts in latencies.items():
        for percent in PERCENTILES:
            figures[f"{PREFIX}/{part}/{LATENCY}_p{percent}"] = _percentile(counts, percent)
    return figures


def remarkable(efforts: Iterable[ScoreEffort], count: int = KEPT) -> tuple[ScoreEffort, ...]:
    """Returns the slowest and the dearest scores of each part, the slowest first; each score once."""
    each = list(efforts)
    kept: set[ScoreEffort] = set()
    for part in {effort.part for effort in each}:
        own = [effort for effort in each if effort.part == part]
        kept.update(heapq.nlargest(count, own, key=_slowness), heapq.nlargest(count, own, key=_expense))
    return tuple(sorted(kept, key=_slowness, reverse=True))


def slowest(efforts: Iterable[ScoreEffort], count: int) -> list[ScoreEffort]:
    """Returns the scores that took longest, the slowest first."""
    return heapq.nlargest(count, efforts, key=_slowness)


def dearest(efforts: Iterable[ScoreEffort], count: int) -> list[ScoreEffort]:
    """Returns the scores that cost most, the dearest first, out of those whose cost is known."""
    return heapq.nlargest(count, (effort for effort in efforts if effort.cost is not None), key=_expense)


def _slowness(effort: ScoreEffort) -> tuple[float, int, int]:
    return effort.seconds, -effort.prompt_ordinal, -effort.sample


def _expense(effort: ScoreEffort) -> tuple[float, int, int]:
    return effort.cost or 0.0, -effort.prompt_ordinal, -effort.sample


def _class_of(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, SHORTEST_SECONDS) / SHORTEST_SECONDS, LATENCY_STEP))


def _percentile(counts: Mapping[int, float], percent: int) -> float:
    """Returns the upper bound of the class in which so many percent of the latencies end."""
    wanted = math.fsum(counts.values()) * percent / 100.0
    so_far = 0.0
    for number in sorted(counts):
        so_far += counts[number]
        if so_far >= wanted:
            return SHORTEST_SECONDS * LATENCY_STEP**number
    return 0.0
