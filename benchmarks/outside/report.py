"""What the campaign found: figures from the gates' lists of requests, the ledger and the runs' files. Nothing is assumed.

Consumes what was done to the runs and seen of them. Produces the figures of `benchmarks.outside`, which docs/benchmarks.md
explains, and the data behind them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.outside.answers import PROBE
from benchmarks.outside.drive import Driven, Struck
from benchmarks.outside.gates import ANSWERED
from benchmarks.outside.schedule import LONG, SHORT, TEN, WAITED_FOR, Kind
from benchmarks.outside.watch import Place, Wait
from db.ledger import Ledger
from flows.billing.held_time import held_spans, records_of
from flows.driver.stopping import LOOK_SECONDS
from flows.run.home import Home
from yatt_core.collection.shard_rows import split_batches
from yatt_core.experience.batch import SAMPLES_FILE
from yatt_core.experience.shard_log import JUDGEMENTS_FILE
from yatt_core.judges.completion import SEED_RANGE
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.prompts.tool_calls import ToolCall, read_call, split_turns
from yatt_core.spec import RunSpec

JUDGE_PART = "judge"
PROBES_A_CONTROLLER = 6
"""Calls that a controller may repeat in one outage of a tool's service to see whether it is there: one each time that an attempt
has used up its retries, and the one that is answered at the end."""
NODE_SECONDS = 5.0
"""Before and after a node's loss, in which an answer may be lost with it."""
LATE_SECONDS = 60.0
"""After a tool's outage, in which its repeated calls are those of the outage."""
MS_PER_HOUR = 3_600_000.0
LONGEST_LATE_S = 20.0
LONGEST_RELEASED_S = 90.0
LEAST_UNMASKED = 30
_SHARD = re.compile(r"(w\d+-s\d+)\.t\d+.*")


@dataclass(frozen=True, slots=True)
class Request:
    """A request at a gate. Times are milliseconds since 1970; told: a judge's answer."""

    gate: str
    what: str
    began: int
    ended: int
    answered: bool
    told: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sealed sample. place: of its verdict; unscored: empty if it has a score; finish: why it ended."""

    place: Place
    seed: str
    iteration: int
    unscored: str
    finish: str
    answer: str
    calls: tuple[str, ...]


@dataclass
class RunFacts:
    """What is known of one run.

    requests: those of its time.
    samples: those that it has learnt from or left out, of committed iterations.
    devices: the number of devices that it was charged from a time on, in order.
    checkpoint_ms: the longest time that a checkpoint took.
    """

    driven: Driven
    requests: list[Request]
    samples: list[Sample]
    devices: list[tuple[int, int]]
    checkpoint_ms: int
    hold_ms: int
    began_at: int
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Runs:
    """The runs of a campaign.

    struck: the one that is compared.
    masked: the one in which samples may be masked.
    difference: what is different first between the one that is compared and an undisturbed one; empty if nothing is.
    """

    struck: RunFacts
    masked: RunFacts | None
    difference: str
    audit_sound: bool
    iterations: int

    @classmethod
    def read(
        cls,
        address: str,
        home: Home,
        requests: Path,
        spec: RunSpec,
        struck: Driven,
        masked: Driven | None,
        quiet: Driven,
    ) -> Runs:
        """Reads the runs' records and files."""
        asked = read_requests(requests)
        with Ledger.open(address) as ledger:
            iterations = ledger.overview.line(struck.run).run.iteration
            different = first_difference((ledger, struck.run), (ledger, quiet.run), iterations)
            driven = [each for each in (struck, masked) if each is not None]
            facts = [facts_of(ledger=ledger, home=home, spec=spec, driven=each, asked=asked) for each in driven]
            sound = all(ledger.events.verify(each.run) is None for each in driven)
        return cls(
            struck=facts[0],
            masked=facts[1] if masked is not None else None,
            difference=different,
            audit_sound=sound,
            iterations=iterations,
        )

    @property
    def facts(self) -> list[RunFacts]:
        """Of the runs that things were taken from."""
        return [self.struck] if self.masked is None else [self.struck, self.masked]


def first_difference(one: tuple[Ledger, str], other: tuple[Ledger, str], iterations: int) -> str:
    """Returns what is different first between two runs over some iterations: experience, weights or result metrics.

    Empty if nothing is different, and there are digests of both.
    """
    found: list[tuple[int, str]] = []
    experience = [dict(ledger.commits.experience_digests(run)) for ledger, run in (one, other)]
    points = [{point[:2]: point.value for point in ledger.metrics.result_points(run)} for ledger, run in (one, other)]
    for iteration in range(1, iterations + 1):
        commits = [ledger.commits.at(run, iteration) for ledger, run in (one, other)]
        weights = [
            None if row is None else (row.weights_digest or row.fingerprint.get("weights_digest")) for row in commits
        ]
        digests = [each.get(iteration) for each in experience]
        found += [
            (iteration, f"{name} of iteration {iteration}")
            for name, (mine, theirs) in (("weights", weights), ("experience", digests))
            if mine is None or mine != theirs
        ]
    for key, step in sorted(points[0].keys() | points[1].keys()):
        if step <= iterations and points[0].get((key, step)) != points[1].get((key, step)):
            found.append((step, f"metric {key} of iteration {step}"))
    return min(found, default=(0, ""))[1]


def read_requests(path: Path) -> list[Request]:
    """Reads the gates' lines."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Request(
            gate=line["gate"],
            what=line["what"],
            began=round(1000 * line["began"]),
            ended=round(1000 * line["ended"]),
            answered=line["outcome"] == ANSWERED,
            told=line["told"],
        )
        for line in found
    ]


def facts_of(ledger: Ledger, home: Home, spec: RunSpec, driven: Driven, asked: Sequence[Request]) -> RunFacts:
    """Reads one run's facts."""
    links = ledger.events.links(driven.run)
    commits = {int(link.body["iteration"]): link.at for link in links if link.kind == "commit"}
    begins = {iteration: commits.get(iteration - 1, driven.began) for iteration in commits}
    took = [row.seconds for row in ledger.records.own_checkpoints(driven.run)]
    spans = held_spans(ledger, driven.run)
    records = records_of(ledger, driven.run, spans[0].start if spans else None)
    return RunFacts(
        driven=driven,
        requests=[each for each in asked if driven.began <= each.began <= driven.ended],
        samples=list(samples_of(home.run_folder(driven.run), spec, set(commits))),
        devices=[(record.since, sum(held.count for held in record.devices.values())) for record in records],
        checkpoint_ms=round(1000 * max(took, default=0.0)),
        hold_ms=round(60_000 * spec.recovery.hold_minutes),
        began_at=commits.get(0, driven.began),
        committed={iteration: (begins[iteration], at) for iteration, at in commits.items()},
    )


def samples_of(folder: Path, spec: RunSpec, iterations: set[int]) -> Iterable[Sample]:
    """Yields the sealed samples of committed iterations, one copy of each shard."""
    seen: set[tuple[str, str]] = set()
    for path in sorted((folder / "experience").glob(f"b*/i*/w*/{SAMPLES_FILE}")):
        named = path.parents[1]
        shard = _SHARD.fullmatch(path.parent.name)
        where = f"{named.parent.name}/{named.name}"
        iteration = int(named.name[1:])
        if (
            shard is None
            or iteration not in iterations
            or (where, shard[1]) in seen
            or not path.with_name("manifest.json").exists()
        ):
            continue
        seen.add((where, shard[1]))
        rows = pq.read_table(path).to_pylist()
        verdicts = {
            (row["prompt_ordinal"], row["sample"]): "".join(one["answer"] for one in row["judgements"])
            for row in pq.read_table(path.with_name(JUDGEMENTS_FILE)).to_pylist()
        }
        prompts = len({row["prompt_ordinal"] for row in rows})
        batch_of = {place: number for number, span in enumerate(split_batches(prompts, spec)) for place in span}
        for number, row in enumerate(rows):
            prompt, sample = divmod(number, spec.rollout.samples_per_prompt)
            first = next(place for place, batch in batch_of.items() if batch == batch_of[prompt])
            member = (prompt - first) * spec.rollout.samples_per_prompt + sample
            seeds = judgement_seeds(
                part=JUDGE_PART,
                count=1,
                seed=spec.seed,
                branch=0,
                iteration=iteration,
                ordinal=row["prompt_ordinal"],
                sample=row["sample"],
            )
            yield Sample(
                place=(where, shard[1], batch_of[prompt], member),
                seed=str(seeds[0] % SEED_RANGE),
                iteration=iteration,
                unscored=row.get("unscored") or "",
                finish=row["finish"],
                answer=verdicts.get((row["prompt_ordinal"], row["sample"]), ""),
                calls=tuple(calls_in(row["response"], row["finish"])),
            )


def calls_in(response: str, finish: str) -> Iterable[str]:
    """Yields the expressions of the calls in a response that the tool was asked.

    The call in the last turn was made only if the service then did not answer it.
    """
    turns, _ = split_turns(response)
    for turn in turns if finish == "tool" else turns[:-1]:
        call = read_call(turn)
        if isinstance(call, ToolCall) and set(call.arguments) == {"expression"}:
            yield str(call.arguments["expression"])


# -- the figures ------------------------------------------------------------------------------------------------------


def figures_of(runs: Runs) -> dict[str, float | None]:
    """Returns the figures: see the functions for how each is computed."""
    struck = [each for facts in runs.facts for each in facts.driven.struck]
    held, released = back_seconds(runs.facts)
    again = [asked_again(facts) for facts in runs.facts]
    return {
        "outages": float(len(struck)),
        **{f"outages_{name}": float(count) for name, count in sorted(by_kind(struck).items())},
        "outages_short": float(sum(each.outage.length == SHORT for each in struck)),
        "outages_long": float(sum(each.outage.length == LONG for each in struck)),
        "outages_ten_minutes": float(sum(each.outage.length == TEN for each in struck)),
        "outages_partial": float(sum(each.outage.is_partial for each in struck)),
        "outages_noticed": float(sum(was_noticed(facts, each) for facts in runs.facts for each in facts.driven.struck)),
        "unmasked_outages": float(unmasked_outages(runs.struck)),
        "runs_ended": float(sum(len(facts.driven.seen.ends) for facts in runs.facts)),
        "drivers_ended": float(sum(len(facts.driven.exits) for facts in runs.facts)),
        "stuck": float(sum(len(facts.driven.stuck) for facts in runs.facts)),
        "learned_from_failed": float(sum(len(learned_from_failed(facts)) for facts in runs.facts)),
        "samples": float(sum(len(facts.samples) for facts in runs.facts)),
        "samples_masked": float(sum(bool(sample.unscored) for facts in runs.facts for sample in facts.samples)),
        "asked_twice": float(sum(each.twice for each in again)),
        "lost_with_a_node": float(sum(each.with_node for each in again)),
        "lost_in_flight": float(sum(each.in_flight for each in again)),
        "digests_equal": float(not runs.difference),
        "audit_chains_sound": float(runs.audit_sound),
        "iterations": float(runs.iterations),
        "back_after_s_p50": quantile(held, 0.5),
        "back_after_s_p95": quantile(held, 0.95),
        "back_after_released_s_max": max(released, default=None),
        "device_hours_held_over_bound": round(sum(hours_over_bound(facts) for facts in runs.facts), 4),
    }


def details_of(runs: Runs) -> dict[str, Any]:
    """Returns the data behind the figures: each outage, the ends of drivers, and what was asked again."""
    told = []
    for facts in runs.facts:
        for each in facts.driven.struck:
            found = back_of(facts, each)
            waits = [asdict(wait) | {"until": last} for wait, last in waits_during(facts, each)]
            told.append(
                {
                    "run": facts.driven.run,
                    "outage": str(each.outage),
                    "name": each.outage.name,
                    "seconds": round((each.back - each.away) / 1000, 1),
                    "noticed": was_noticed(facts, each),
                    "back_after_s": None if found is None else found[0],
                    "released": None if found is None else found[1],
                    "waits": waits,
                }
            )
    return {
        "outages": told,
        "exits": [line for facts in runs.facts for line in facts.driven.exits],
        "stuck": [line for facts in runs.facts for line in facts.driven.stuck],
        "ends": [line for facts in runs.facts for line in facts.driven.seen.ends],
        "difference": runs.difference,
        "learned_from_failed": [asdict(sample) for facts in runs.facts for sample in learned_from_failed(facts)],
        "asked_again": [asdict(asked_again(facts)) for facts in runs.facts],
        "over_bound": [line for facts in runs.facts for line in spans_over_bound(facts)],
    }


def holds(figures: Mapping[str, float | None]) -> bool:
    """Returns whether the promise holds: nothing ended, was learnt from what failed or asked twice, and all was back in time."""
    broken = ("runs_ended", "stuck", "learned_from_failed", "asked_twice", "device_hours_held_over_bound")
    late = figures["back_after_s_p95"]
    released = figures["back_after_released_s_max"]
    return (
        not any(figures[key] for key in broken)
        and bool(figures["digests_equal"] and figures["audit_chains_sound"])
        and (late is None or late <= LONGEST_LATE_S)
        and (released is None or released <= LONGEST_RELEASED_S)
    )


def by_kind(struck: Iterable[Struck]) -> Counter[str]:
    """Returns the number of outages by what was away."""
    return Counter(str(each.outage.kind) for each in struck)


def failed_requests(facts: RunFacts, struck: Struck) -> list[Request]:
    """Returns the requests that an outage left without an answer."""
    during = [each for each in facts.requests if each.began <= struck.back and each.ended >= struck.away]
    return [each for each in during if each.gate == struck.outage.kind and not each.answered]


def waits_during(facts: RunFacts, struck: Struck) -> list[tuple[Wait, int]]:
    """Returns what the run waited for during an outage and until it had gone on, with when that was last seen."""
    return [
        (wait, last)
        for wait, last in facts.driven.seen.waits.values()
        if wait.since <= struck.back and last >= struck.away
    ]


def was_noticed(facts: RunFacts, struck: Struck) -> bool:
    """Returns whether an outage touched the run: a request of it failed, or the run waited.

    A refused connection leaves no line, so that an outage of that kind without a wait counts if the run made no progress in it.
    Every loss of a node counts.
    """
    if struck.outage.kind == Kind.NODE or failed_requests(facts, struck) or waits_during(facts, struck):
        return True
    went_on = any(struck.away <= at <= struck.back for at in facts.driven.seen.progress)
    return struck.outage.kind in WAITED_FOR and not went_on


def back_of(facts: RunFacts, struck: Struck) -> tuple[float, bool] | None:
    """Returns the seconds from the return of what was away to the first progress, and whether devices had been given back.

    None if the outage was not noticed, if nothing can be said, or if the run ended before it made progress.

    Progress is a shard or the end of a phase in the ledger; for MLflow and Prefect, without which a run goes on, it is the first
    request that was answered. While something else that the run waits for is still away, nothing can be said.
    """
    if not was_noticed(facts, struck) or struck.other_back > struck.back:
        return None
    if struck.outage.kind not in WAITED_FOR:
        answered = [each.ended for each in facts.requests if each.gate == struck.outage.kind and each.answered]
        first = next((at for at in sorted(answered) if at >= struck.back), None)
        return None if first is None else ((first - struck.back) / 1000, False)
    since = struck.back
    progress = facts.driven.seen.progress
    place = bisect_left(progress, since)
    if place == len(progress):
        return None
    released = any(
        wait.returned_at is not None and wait.returned_at <= progress[place] for wait, _ in waits_during(facts, struck)
    )
    return (progress[place] - since) / 1000, released


def back_seconds(runs: Iterable[RunFacts]) -> tuple[list[float], list[float]]:
    """Returns the seconds of `back_of` while devices were held, and after they had been given back."""
    held: list[float] = []
    given: list[float] = []
    for facts in runs:
        for each in facts.driven.struck:
            found = back_of(facts, each)
            if found is not None:
                (given if found[1] else held).append(found[0])
    return held, given


def unmasked_outages(facts: RunFacts) -> int:
    """Returns the number of the compared run's outages in whose iterations every sample has a score."""
    masked = {sample.iteration for sample in facts.samples if sample.unscored}
    spans = [facts.committed[iteration] for iteration in masked]
    return sum(not any(begin <= each.back and each.away <= end for begin, end in spans) for each in facts.driven.struck)


def learned_from_failed(facts: RunFacts) -> list[Sample]:
    """Returns the samples that have a score although the judge never answered their question, or gave another answer than the one
    on record, or although the tool's service never answered a call that they made.
    """
    told: dict[str, set[str]] = defaultdict(set)
    called = {each.what for each in facts.requests if each.gate == Kind.TOOL and each.answered}
    for each in facts.requests:
        if each.gate == Kind.JUDGE and each.answered:
            told[each.what].add(each.told)

    def is_unfounded(sample: Sample) -> bool:
        return sample.answer not in told[sample.seed] or not called.issuperset(sample.calls)

    return [sample for sample in facts.samples if not sample.unscored and is_unfounded(sample)]


@dataclass
class Again:
    """Requests that were answered again.

    twice: although the answer was durable.
    with_node: after an answer that a node may have taken with it.
    in_flight: after an answer that was not durable, since its attempt ended before.
    probes: calls that were repeated to see whether a tool's service is there.
    """

    twice: int = 0
    with_node: int = 0
    in_flight: int = 0
    probes: int = 0
    which: list[str] = field(default_factory=list)


def asked_again(facts: RunFacts) -> Again:
    """Returns how many requests were answered again.

    A question to the judge has a seed of its own, and its verdict is durable from the time of the file that holds it. Calls with
    the same expression cannot be told apart: answered ones that no sample has are extra. An extra call beside a node's loss was
    lost with it; those within an outage of the tool's service are probes, of which a controller makes a few; all others were
    asked twice.
    """
    found = Again()
    losses = [each.away for each in facts.driven.struck if each.outage.kind == Kind.NODE]

    def beside_a_loss(request: Request) -> bool:
        return any(abs(request.ended - at) <= 1000 * NODE_SECONDS for at in losses)

    durable = {sample.seed: facts.driven.seen.durable.get(sample.place) for sample in facts.samples}
    answers: dict[str, list[Request]] = defaultdict(list)
    for each in facts.requests:
        if each.gate == Kind.JUDGE and each.answered and each.what != PROBE:
            answers[each.what].append(each)
    for seed, given in answers.items():
        for before, after in pairwise(given):
            at = durable.get(seed)
            if at is not None and at <= after.began:
                found.twice += 1
                found.which.append(f"judge {seed} at {after.began}, durable at {at}")
            elif beside_a_loss(before):
                found.with_node += 1
            else:
                found.in_flight += 1
    _count_extra_calls(facts, found, beside_a_loss)
    return found


def _count_extra_calls(facts: RunFacts, found: Again, beside_a_loss: Any) -> None:
    wanted = Counter(call for sample in facts.samples for call in sample.calls)
    outages = [each for each in facts.driven.struck if each.outage.kind == Kind.TOOL]
    probes: Counter[int] = Counter()
    answered: dict[str, list[Request]] = defaultdict(list)
    for each in facts.requests:
        if each.gate == Kind.TOOL and each.answered and each.began >= facts.began_at:
            answered[each.what].append(each)
    for what, given in answered.items():
        extra = len(given) - wanted[what]
        for each in sorted(given, key=lambda one: not beside_a_loss(one)):
            if extra <= 0:
                break
            near = [
                number for number, outage in enumerate(outages)
                if outage.away <= each.began <= outage.back + 1000 * LATE_SECONDS and probes[number] < 2 * PROBES_A_CONTROLLER
            ]  # fmt: skip
            if beside_a_loss(each):
                found.with_node += 1
            elif near:
                probes[near[0]] += 1
                found.probes += 1
            else:
                continue
            extra -= 1
        if extra > 0:
            found.twice += extra
            found.which.append(f"tool {what}: {extra} of {len(given)}")


def spans_over_bound(facts: RunFacts) -> list[dict[str, Any]]:
    """Returns the spans in which a run that waited was charged for devices after the time that it may hold them.

    It may hold them for `hold_minutes` since it began to wait, and then for as long as the longest checkpoint of the run took and
    the half second between two looks of the driver at its clock, until what it waits for is back. The charges are the billing
    records of the audit chain.
    """
    found = []
    waited = [each for each in facts.driven.struck if each.outage.kind in WAITED_FOR]
    for wait, last in facts.driven.seen.waits.values():
        allowed = wait.since + facts.hold_ms + facts.checkpoint_ms + round(1000 * LOOK_SECONDS)
        until = min(
            last,
            max((each.other_back for each in waited if each.away <= last and each.back >= wait.since), default=last),
        )
        held = charged_ms(facts.devices, allowed, until)
        if held > 0:
            over = {"dependency": wait.dependency, "since": wait.since, "allowed": allowed, "until": until}
            found.append({**over, "hours": held / MS_PER_HOUR})
    return found


def hours_over_bound(facts: RunFacts) -> float:
    """Returns the device-hours of `spans_over_bound`."""
    return float(sum(span["hours"] for span in spans_over_bound(facts)))


def charged_ms(devices: Sequence[tuple[int, int]], begin: int, end: int) -> float:
    """Returns the device-milliseconds charged between two moments.

    devices: the number of devices from a time on, in order.
    """
    ends = [since for since, _ in devices[1:]] + [end]
    return float(
        sum(
            count * max(0, min(until, end) - max(since, begin))
            for (since, count), until in zip(devices, ends, strict=True)
        )
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value that at least this share of the values do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(1000 * share) * len(ordered) // 1000) - 1)] if ordered else None
