"""A run's results, as `yatt train -o json` and `yatt show -o json` print them: read from the ledger alone.

The digests depend on results only, so two runs with equal digests computed the same results, however often one of them
was killed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from db.ledger import Ledger
from db.read.overview import RunOverview
from db.write.metrics import Point
from yatt_core.digests import chain_digest

ACCURACY = "evaluation/accuracy"
SFT_SECONDS = "sft/seconds"
SESSION_ENDED = "session_ended"


@dataclass(frozen=True, slots=True)
class RunResults:
    """A run's figures; a figure is None if the run has not produced it yet.

    accuracy_sft: held-out accuracy after SFT.
    accuracy: the latest held-out accuracy.
    seconds: wall time of all sessions.
    sft_seconds: duration of SFT.
    weights_digest: digest of the weights after the last committed iteration.
    experience_digest: digest of the experience of all iterations of the current branch.
    metrics_digest: digest of all metric points of class result.
    flow_bytes_per_sample: bytes that reached the driver processes, per sample.
    """

    run: str
    state: str
    iteration: int
    accuracy_sft: float | None
    accuracy: float | None
    seconds: float
    sft_seconds: float | None
    weights_digest: str | None
    experience_digest: str
    metrics_digest: str
    flow_bytes_per_sample: float | None


@dataclass(frozen=True, slots=True)
class RunDigests:
    """The digests that say whether two runs did the same; their meaning is that of `RunResults`."""

    weights_digest: str | None
    experience_digest: str
    metrics_digest: str


def run_digests(ledger: Ledger, run: str) -> RunDigests:
    """Returns the digests of a run, by its id. Raises `RunNotFound`."""
    return RunDigests(
        weights_digest=_weights_digest(ledger, run),
        experience_digest=chain_digest(digest for _, digest in ledger.commits.experience_digests(run)),
        metrics_digest=metrics_digest(ledger.metrics.result_points(run)),
    )


def run_results(ledger: Ledger, run: str) -> RunResults:
    """Returns the figures of a run, by its id. Raises `RunNotFound`."""
    overview = ledger.overview.show(run)
    accuracy = dict(ledger.metrics.history(run, ACCURACY))
    sft = dict(ledger.metrics.history(run, SFT_SECONDS))
    digests = run_digests(ledger, run)
    driver_bytes = sum(phase.bytes_to_driver for phase in overview.phases)
    return RunResults(
        run=run,
        state=overview.line.run.state,
        iteration=overview.line.run.iteration,
        accuracy_sft=accuracy.get(0),
        accuracy=accuracy[max(accuracy)] if accuracy else None,
        seconds=sum(session_seconds(ledger, overview).values()),
        sft_seconds=sft.get(0),
        weights_digest=digests.weights_digest,
        experience_digest=digests.experience_digest,
        metrics_digest=digests.metrics_digest,
        flow_bytes_per_sample=driver_bytes / overview.samples if overview.samples else None,
    )


def session_seconds(ledger: Ledger, overview: RunOverview) -> dict[int, float]:
    """Returns the wall time of each session by term.

    This is the time that the session's command recorded at the end, or else the time from the session's start to its
    end. A session whose driver was lost counts up to its last commit, since the time of the loss is unknown.
    """
    told: dict[int, float] = {}
    last_commit: dict[int, int] = {}
    for link in ledger.events.links(overview.line.run.id):
        if link.kind == SESSION_ENDED:
            told[link.body["term"]] = link.body["seconds"]
        elif link.kind == "commit":
            last_commit[link.body["term"]] = link.at
    seconds: dict[int, float] = {}
    for session in overview.sessions:
        ended = session.ended_at if session.outcome != "lost" else None
        until = ended or last_commit.get(session.term, session.started_at)
        seconds[session.term] = told.get(session.term, (until - session.started_at) / 1000)
    return seconds


def metrics_digest(points: Iterable[Point]) -> str:
    """Returns the sha256 over (key, step, value) in the given order, each value as a little-endian 8-byte double."""
    digest = hashlib.sha256()
    for point in points:
        digest.update(f"{point.key}|{point.step}|".encode() + struct.pack("<d", point.value))
    return digest.hexdigest()


def _weights_digest(ledger: Ledger, run: str) -> str | None:
    """Returns the weights digest of the last commit, else of its checkpoint; None if neither has one."""
    commit = ledger.commits.latest(run)
    if commit is None or commit.weights_digest is not None:
        return commit.weights_digest if commit else None
    checkpoints = ledger.records.checkpoints(run, state=None)
    return next((row.weights_digest for row in checkpoints if row.iteration == commit.iteration), None)
