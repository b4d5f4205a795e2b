"""Accounts for a run's wall time and the cost of its crashes: pure functions over the times in the ledger.

Consumes a `RunHistory`; produces `Accounts`. The wall time runs from the first time the lease was taken to the last
sign of life. Every moment of it belongs to exactly one bucket:

    productive  attempts at phases whose results are in use
    redone      work that was discarded and repeated: failed attempts, finished attempts that were repeated, replay,
                iterations that a rollback removed from the current line
    checkpoint  the phase `checkpoint`: the trainer is stalled while its tensors are copied
    start       a driver starts as intended, the first one or after one that ended in order: until its first phase, and in its
                first attempt at `start` or `recover` except replay; of a fork's first driver, with the replay from its parent
    restart     a driver starts after one that was lost or failed, or restarts what was lost: until its first phase, and in
                `start` or `recover` except replay; also from the last sign of life of a lost driver to the next one
    waiting     a driver without a current phase: between phases, while the ledger does not answer, during the last
                deliveries
    idle        no driver was requested: between a normal end and the next start

The effective training time ratio is ETTR = productive / (wall - idle).

The part of a failed attempt that survives: for `collect`, its time until it sealed its last shard; for any other
phase, the time that the finished attempt saved, compared with the phase's median over the iterations with a single
attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from db.read.history import AttemptTimes, RunHistory
from db.write.lease import DRIVER_LOST
from flows.run.session_times import SessionSpan, Span, clip, session_spans, span_of

PRODUCTIVE, REDONE, CHECKPOINT, START, RESTART, WAITING, IDLE = BUCKETS = (
    "productive",
    "redone",
    "checkpoint",
    "start",
    "restart",
    "waiting",
    "idle",
)
REPLAY = "replay"
BETWEEN_PHASES = "between phases"
BEGINNINGS = ("start", "recover")
"""The phases with which a driver begins."""
LAST = "last"
NEXT = "next"
NONE = "none"
Work = tuple[int, int, str]
"""Branch, iteration and phase; there may be several attempts at it."""
Attempt = tuple[int, int, str, int]


@dataclass(frozen=True, slots=True)
class BookedInterval:
    """A piece of wall time.

    start, end: milliseconds since 1970.
    phase: the phase in progress; empty if there was none.
    charged: the crash to which its cost is charged: the `last` one before it, the `next` one after it, or `none`.
    """

    start: int
    end: int
    bucket: str
    phase: str = ""
    charged: str = NONE

    @property
    def length(self) -> int:
        """The length in milliseconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Crash:
    """A lost driver or a failed attempt, and its cost.

    at: milliseconds since 1970.
    kind: `driver lost`, or the class of the failure.
    phase: the phase in which it happened.
    restart_seconds: seconds until work continued.
    redone: seconds of repeated work by phase, including replay.
    """

    at: int
    kind: str
    term: int
    iteration: int | None
    phase: str
    reason: str
    restart_seconds: float = 0.0
    redone: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accounts:
    """A run's wall time in seconds.

    buckets: seconds by bucket.
    phases: seconds by bucket and phase.
    ettr: the effective training time ratio; None if the run was never driven.
    """

    wall_seconds: float
    buckets: Mapping[str, float]
    phases: Mapping[str, Mapping[str, float]]
    ettr: float | None
    crashes: tuple[Crash, ...]


def accounts_of(history: RunHistory) -> Accounts:
    """Returns the accounts of a run's wall time."""
    sessions = session_spans(history)
    pieces = list(book(history, sessions))
    buckets = dict.fromkeys(BUCKETS, 0)
    phases: dict[str, dict[str, int]] = {}
    for piece in pieces:
        buckets[piece.bucket] += piece.length
        if piece.phase and piece.length:
            of_bucket = phases.setdefault(piece.bucket, {})
            of_bucket[piece.phase] = of_bucket.get(piece.phase, 0) + piece.length
    wall = sum(buckets.values())
    asked = wall - buckets[IDLE]
    return Accounts(
        wall_seconds=wall / 1000,
        buckets=_seconds(buckets),
        phases={bucket: _seconds(of_bucket) for bucket, of_bucket in phases.items()},
        ettr=buckets[PRODUCTIVE] / asked if asked else None,
        crashes=crashes_of(sessions, pieces),
    )


# -- the buckets ----------------------------------------------------------------------------------------------------------


def book(history: RunHistory, sessions: Sequence[SessionSpan]) -> Iterator[BookedInterval]:
    """Splits the wall time into pieces, in order, without gaps or overlaps; some may be empty."""
    survivors = survivors_of(history, sessions)
    last = {session.branch: session.last for session in history.line if session.run == history.run}
    for number, session in enumerate(sessions):
        if number:
            before = sessions[number - 1]
            yield BookedInterval(
                start=before.end, end=session.start, bucket=RESTART if before.lost else IDLE, phase="", charged=LAST
            )
        cursor = session.start
        gap = START if number == 0 or _ended_in_order(sessions[number - 1]) else RESTART
        for attempt in session.attempts:
            start, end = span_of(attempt, session)
            start = max(start, cursor)
            end = max(end, cursor)
            yield BookedInterval(start=cursor, end=start, bucket=gap, phase="", charged=LAST)
            on_line = attempt.iteration <= last.get(attempt.branch, -1)
            if attempt.phase in BEGINNINGS and gap == START:
                # What a run's first driver replays are updates of the parent of a fork, of which nothing was lost.
                first = number == 0 and history.since is None
                split = end if first else _replay_begins(attempt, start, end)
                yield BookedInterval(start, split, START, attempt.phase)
                yield BookedInterval(start=split, end=end, bucket=REDONE, phase=REPLAY, charged=LAST)
            else:
                yield from _pieces(
                    attempt=attempt, start=start, end=end, survival=survivors.get(attempt.key, NOTHING), on_line=on_line
                )
            cursor = end
            gap = WAITING
        yield BookedInterval(start=cursor, end=session.end, bucket=gap, phase="", charged=LAST)


def _ended_in_order(session: SessionSpan) -> bool:
    """Returns True if a driver ended as intended: it recorded its end, and what it did last had not failed."""
    return not session.lost and not (session.attempts and session.attempts[-1].state == "FAILED")


def _replay_begins(attempt: AttemptTimes, start: int, end: int) -> int:
    """Returns when an attempt at `start` or `recover` begins to replay updates; its end if it replays none."""
    receipt = attempt.receipt or {}
    replay_seconds = float(receipt["replay_seconds"]) if receipt.get("replayed") else 0.0
    return clip(end - round(1000 * replay_seconds), start, end)


def _pieces(
    attempt: AttemptTimes, start: int, end: int, survival: Survival, on_line: bool
) -> tuple[BookedInterval, BookedInterval]:
    """Splits an attempt's time into two pieces: the part that is still in use, then the rest; one may be empty."""
    phase = attempt.phase
    if phase in BEGINNINGS:
        split = _replay_begins(attempt, start, end)
        return BookedInterval(start=start, end=split, bucket=RESTART, phase=phase, charged=LAST), BookedInterval(
            start=split, end=end, bucket=REDONE, phase=REPLAY, charged=LAST
        )
    if phase == "checkpoint":
        return BookedInterval(start, end, CHECKPOINT, phase), BookedInterval(end, end, CHECKPOINT, phase)
    if not on_line:
        return BookedInterval(start, end, REDONE, phase), BookedInterval(end, end, REDONE, phase)
    split = clip(start + survival.milliseconds, start, end)
    return BookedInterval(start, split, PRODUCTIVE, phase), BookedInterval(
        start=split, end=end, bucket=REDONE, phase=phase, charged=survival.charged
    )


@dataclass(frozen=True, slots=True)
class Survival:
    """How much of an attempt's time produced results still in use, and to which crash the rest is charged."""

    milliseconds: int
    charged: str = NEXT


NOTHING = Survival(0)


def survivors_of(history: RunHistory, sessions: Sequence[SessionSpan]) -> dict[Attempt, Survival]:
    """Returns the surviving time of each attempt; an attempt that is not listed has none."""
    spans: dict[Attempt, Span] = {}
    works: dict[Work, list[AttemptTimes]] = defaultdict(list)
    for session in sessions:
        for attempt in session.attempts:
            spans[attempt.key] = span_of(attempt, session)
            works[attempt.key[:3]].append(attempt)
    typical = _medians(works, spans)
    sealed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for shard in history.sealed:
        sealed[shard.branch, shard.iteration].append(shard.recorded_at)
    survivors: dict[Attempt, Survival] = {}
    for (branch, iteration, phase), attempts in works.items():
        if phase in ("collect", "collect_ahead"):
            survivors |= _sealed_time(attempts, spans, sealed[branch, iteration])
        else:
            survivors |= _not_repeated(attempts, spans, typical.get(phase, 0))
    return survivors


def _sealed_time(
    attempts: Sequence[AttemptTimes], spans: Mapping[Attempt, Span], sealed: Sequence[int]
) -> dict[Attempt, Survival]:
    """Returns the survival of attempts at `collect`: even if an attempt failed, the shards that it sealed are used."""
    survivors = {}
    for attempt in attempts:
        start, end = spans[attempt.key]
        until = end if _stands(attempt) else max((at for at in sealed if start <= at <= end), default=start)
        survivors[attempt.key] = Survival(until - start)
    return survivors


def _not_repeated(
    attempts: Sequence[AttemptTimes], spans: Mapping[Attempt, Span], typical: int
) -> dict[Attempt, Survival]:
    """Returns the survival of attempts at a phase other than `collect`.

    Of several finished attempts, the longest counts as the one that did the work (of equally long ones, the latest).
    Failed attempts are credited with the time that it saved compared with the phase's median. All other time is
    repeated work: before the longest attempt it is charged to the next crash, after it to the last one.
    """
    lengths = {attempt.key: spans[attempt.key][1] - spans[attempt.key][0] for attempt in attempts}
    finished = [attempt.key for attempt in attempts if _stands(attempt)]
    if not finished:
        return {}
    longest = max(reversed(finished), key=lengths.__getitem__)
    survivors = {key: Survival(0, LAST) for key in finished[finished.index(longest) + 1 :]}
    survivors[longest] = Survival(lengths[longest])
    missing = max(0, typical - lengths[longest])
    for attempt in reversed(attempts):
        if not _stands(attempt):
            survived = min(missing, lengths[attempt.key])
            survivors[attempt.key] = Survival(survived)
            missing -= survived
    return survivors


def _medians(works: Mapping[Work, Sequence[AttemptTimes]], spans: Mapping[Attempt, Span]) -> dict[str, int]:
    """Returns the median duration of each phase, in milliseconds, over the iterations with a single attempt."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for attempts in works.values():
        if len(attempts) == 1 and attempts[0].state == "DONE":
            start, end = spans[attempts[0].key]
            lengths[attempts[0].phase].append(end - start)
    return {phase: round(median(values)) for phase, values in lengths.items()}


def _stands(attempt: AttemptTimes) -> bool:
    """Returns True unless an attempt's result was discarded, that is if it has finished or is still in progress."""
    return attempt.state != "FAILED"


# -- crashes --------------------------------------------------------------------------------------------------------------


def crashes_of(sessions: Sequence[SessionSpan], pieces: Sequence[BookedInterval]) -> tuple[Crash, ...]:
    """Returns all crashes with their cost.

    The cost consists of the interrupted attempt, earlier finished work that was repeated, and the restart and replay
    up to the next crash.
    """
    found = sorted((crash for session in sessions for crash in _struck(session)), key=lambda crash: crash.at)
    times = [crash.at for crash in found]
    restart = [0] * len(found)
    redone: list[dict[str, int]] = [{} for _ in found]
    seen = 0
    last = -1
    for piece in pieces:
        while seen < len(found) and times[seen] <= piece.start:
            last = seen
            seen = seen + 1
        if piece.bucket == IDLE:
            last = -1
        payer = last if piece.charged == LAST else bisect_left(times, piece.end) if piece.charged == NEXT else -1
        if not piece.length or not 0 <= payer < len(found):
            continue
        if piece.bucket == RESTART:
            restart[payer] += piece.length
        elif piece.bucket == REDONE:
            redone[payer][piece.phase] = redone[payer].get(piece.phase, 0) + piece.length
    return tuple(
        replace(crash, restart_seconds=restart[number] / 1000, redone=_seconds(redone[number]))
        for number, crash in enumerate(found)
    )


def _struck(session: SessionSpan) -> Iterator[Crash]:
    """Yields the crashes of a session, without their cost."""
    lost = False
    for attempt in session.attempts:
        if attempt.state == "FAILED":
            gone = attempt.reason == DRIVER_LOST
            lost = lost or gone
            kind = DRIVER_LOST if gone else attempt.failure_class or ""
            yield Crash(
                at=span_of(attempt, session)[1],
                kind=kind,
                term=session.term,
                iteration=attempt.iteration,
                phase=attempt.phase,
                reason=attempt.reason or "",
            )
    if session.lost and session.replaced and not lost:
        yield Crash(
            at=session.end,
            kind=DRIVER_LOST,
            term=session.term,
            iteration=None,
            phase=BETWEEN_PHASES,
            reason=DRIVER_LOST,
        )


def _seconds(milliseconds: Mapping[str, int]) -> dict[str, float]:
    return {name: value / 1000 for name, value in milliseconds.items()}
