"""Finds the actors to blame for a missed deadline: asks all actors for their stacks and picks those that are stuck.

Consumes the answers of the actors' presence threads; produces the stuck actors and texts that name actor,
method and place.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from yatt_core.actors.presence import StackReport, decode_report
from yatt_core.cluster.control_store import ControlStore
from yatt_core.cluster.driver_signs import end_request, put_request, take_answers
from yatt_core.cluster.metering import Interruptions, first_ready

log = logging.getLogger(__name__)
ANSWER_SECONDS = 3.0
POLL_SECONDS = 0.1
KEPT_REQUESTS = 10
TOGETHER_SECONDS = 5.0
"""Seconds that other ranks may take longer than the first one to finish a call made to all ranks."""
COLLECTIVE = frozenset({"sft", "accumulate", "prepare", "learn", "weights_digest"})
"""A rank's methods that wait for the other ranks."""
ALONE = frozenset({"accumulate"})
"""Those of them that a rank may end by itself: gradients are added up without the others, and a rank may be done long before."""
SILENT = "does not answer: it holds the interpreter, is stopped, or is gone"


def gather_stacks(
    store: ControlStore, run_folder: Path, actors: Collection[str], timeout: float = ANSWER_SECONDS
) -> dict[str, StackReport]:
    """Returns what each actor is doing, by name, except actors that did not answer within `timeout` seconds.

    The answers to the last few requests are kept in `RUN/logs/stacks/`, on this host.

    Raises `InfrastructureError` if the control store does not answer: no actor is to blame for that.
    """
    kept = run_folder / "logs" / "stacks"
    request = f"{time.time_ns():020d}-{uuid.uuid4().hex[:6]}"
    put_request(store, request)
    answers: dict[str, str] = {}
    try:
        deadline = time.monotonic() + timeout
        while not answers.keys() >= set(actors) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            answers |= take_answers(store, request, frozenset(answers))
    finally:
        end_request(store, request)
    _keep(kept, request, answers)
    return {actor: decode_report(answers[actor]) for actor in actors if actor in answers}


def _keep(kept: Path, request: str, answers: Mapping[str, str]) -> None:
    """Writes answers to files, for people only: a full disk must not keep the driver from its decision."""
    try:
        (kept / request).mkdir(parents=True, exist_ok=True)
        for actor, answer in answers.items():
            (kept / request / f"{actor}.json").write_text(answer)
    except OSError as error:
        log.warning("the answers of actors are not kept: %s", error)
    for old in sorted(kept.glob("*-*"))[:-KEPT_REQUESTS]:
        shutil.rmtree(old, ignore_errors=True)


def find_stuck(actors: Sequence[str], reports: Mapping[str, StackReport], awaited: Collection[str]) -> list[str]:
    """Returns the actors that block the others: those that do not answer, or work without waiting for another actor.

    If there are none, returns the idle actors for which others wait; then all busy actors; if no actor is busy, the
    awaited actors.

    awaited: names of actors.
    """
    silent = [actor for actor in actors if actor not in reports]
    busy = [actor for actor in actors if actor in reports and reports[actor].method]
    working = [actor for actor in busy if not reports[actor].waits]
    missing = missing_actors(reports)
    return silent + working or [actor for actor in actors if actor in missing] or busy or list(awaited)


def missing_actors(reports: Mapping[str, StackReport]) -> dict[str, list[str]]:
    """Returns the actors that have not come to an operation in which others wait, each with who waits and in what.

    An actor that waits in another operation is not missing: it waits for others in turn.
    """
    missing: dict[str, list[str]] = {}
    for actor, report in reports.items():
        for name in report.awaits:
            if name not in reports or not reports[name].operation:
                missing.setdefault(name, []).append(f"{actor} in {report.operation}")
    return missing


def find_abandoned(
    store: ControlStore, run_folder: Path, asked: Mapping[Any, str], timeout: float, interruptions: Interruptions
) -> list[str]:
    """Returns descriptions of the ranks that wait in vain for ranks that were never called; empty if there are none.

    This happens if the driver died between its calls to two ranks.

    asked: one pending call per rank, which the rank answers after all earlier calls, with the rank's name. A rank
        that answers has nothing left to do, so a rank that is still in a collective method waits in vain, unless
        it ends that method by itself.
    timeout: maximum wait for the first answer, in seconds.
    """
    if first_ready(list(asked), timeout, interruptions) is None:
        return []
    with interruptions.shielded():
        _, busy = ray.wait(list(asked), num_returns=len(asked), timeout=TOGETHER_SECONDS)
    reports = gather_stacks(store, run_folder, [asked[call] for call in busy]) if busy else {}
    return [describe(actor, report) for actor, report in reports.items() if _is_abandoned(report)]


def _is_abandoned(report: StackReport) -> bool:
    return report.method in COLLECTIVE and (report.waits or report.method not in ALONE)


def describe(actor: str, report: StackReport | None, waiting: Sequence[str] = ()) -> str:
    """Returns one line about an actor.

    waiting: the actors that wait for it, as in `missing_actors`.
    """
    blocked = f" (missed by {', '.join(waiting)})" if waiting else ""
    if report is None:
        return f"{actor} {SILENT}{blocked}"
    if not report.method:
        return f"{actor} is idle{blocked}"
    line = f"{actor} in {report.method} for {report.seconds:g} s at {report.place}{blocked}"
    if not report.operation:
        return line
    return f"{line}, waiting in {report.operation} with {', '.join(report.awaits)}"


def log_stacks(actor: str, report: StackReport | None) -> None:
    """Writes an actor's stacks to this process's log."""
    log.error("%s\n%s", describe(actor, report), "\n".join(report.stacks) if report is not None else "no stack")
