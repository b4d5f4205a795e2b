"""Puts runs into the queue, for commands and the dashboard: checks what is asked against the pools before anything is written.

Consumes a home, a run's spec and what is asked; produces an entry of the queue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from db.write.queueing import AUTO, SPEC, Submission
from flows.queueing.pools_file import read_pools
from flows.run.home import Home
from ops.queries.run_list import DRIVEN, find_line
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.billing import NAME as PROJECT

HIGHEST = 100
DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class SubmissionOptions:
    """What is asked for a run; None for the default.

    pools: the preferred one first; the only pool by default.
    devices: those that its spec needs by default.
    """

    pools: Sequence[str] = ()
    project: str = DEFAULT_PROJECT
    priority: int = 0
    devices: int | None = None
    auto_checkpoints: bool = False


def checked_submission(home: Home, spec: RunSpec, asked: SubmissionOptions, owner: str) -> Submission:
    """Returns the submission. Raises `ConfigurationError` if its devices could never be had."""
    pools = read_pools(home)
    names = tuple(asked.pools) or tuple(pools.pools)
    if not asked.pools and len(names) > 1:
        raise ConfigurationError(f"--pool: there are several pools; expected some of {', '.join(sorted(names))}")
    if len(set(names)) < len(names):
        raise ConfigurationError("--pool: each pool can be named once only")
    if abs(asked.priority) > HIGHEST:
        raise ConfigurationError(f"--priority {asked.priority}: expected a number from -{HIGHEST} to {HIGHEST}")
    if re.fullmatch(PROJECT, asked.project) is None:
        raise ConfigurationError(f"--project {asked.project!r:.90}: expected a name of at most 80 letters and digits")
    devices = spec.devices if asked.devices is None else asked.devices
    for name in names:
        most = pools.most_devices(name, owner, asked.project)
        if devices > most:
            raise ConfigurationError(
                f"--pool {name}: the run needs {many(devices, 'device')}, and {owner} can have at most {most} of them there"
            )
    checkpoints = AUTO if asked.auto_checkpoints else SPEC
    return Submission(
        pools=names,
        owner=owner,
        project=asked.project,
        priority=asked.priority,
        devices=devices,
        checkpoints=checkpoints,
    )


def submit(home: Home, ledger: Ledger, run: str, spec: RunSpec, asked: SubmissionOptions, by: str) -> Submission:
    """Puts a run into the queue.

    Raises `ConfigurationError`, also if the run is driven or complete, and `QueueRefused`.
    """
    line = find_line(ledger, run)
    entry = ledger.queue.entry(run)
    if line.driver == DRIVEN and (entry is None or entry.ended_at is not None):
        raise ConfigurationError(f"run {run} is driven by {line.holder}; stop it first: `yatt stop {run} --wait`")
    if line.iteration >= line.target_iterations:
        raise ConfigurationError(f"run {run} is complete; `yatt resume {run} --set iterations=N` extends it")
    submission = checked_submission(home, spec, asked, by)
    ledger.submissions.submit(run, submission, by)
    return submission
