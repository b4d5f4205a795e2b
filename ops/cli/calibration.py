"""Reads what a run recorded of its own times, for `yatt plan --calibrate`: phases from the ledger, shards from telemetry.

Consumes a ledger, the home folder and a run's id; produces the constants that were fitted. Reads sealed experience for
the lengths of responses, along the current branch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from yatt_core.data.batch import load_batch
from yatt_core.data.telemetry import read_telemetry
from yatt_core.errors import DataError
from yatt_core.planning.fitted import BatchWork, Fitted, IterationTimes, fit
from yatt_core.receipts import ShardRef
from yatt_core.spec import RunSpec, parse_spec

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.home import Home

NEWEST = 20
"""Iterations that are looked at."""
COLLECT_PREFIX, GENERATE = "collect.", "generate"


def calibrate(ledger: Ledger, home: Home, run: str) -> Fitted:
    """The constants of a run. Raises `DataError` where it has no commit yet."""
    row = ledger.runs.find(run)
    if row.iteration < 1:
        raise DataError(f"run {run}: has no iteration yet that the plan could be calibrated by")
    spec = parse_spec(ledger.runs.revision(run).spec, f"the ledger's spec of {run}")
    newest = range(max(1, row.iteration - NEWEST + 1), row.iteration + 1)
    batches = {iteration: list(_batches(ledger, home, run, iteration, spec)) for iteration in newest}
    generating = {
        iteration: sum(batch.seconds for batch in found) / spec.rollout.engine.instances
        for iteration, found in batches.items()
    }
    iterations = list(_iterations(ledger, run, generating, spec))
    return fit(run, [batch for found in batches.values() for batch in found], iterations, spec.trainer.engine.ranks)


def _iterations(ledger: Ledger, run: str, generating: Mapping[int, float], spec: RunSpec) -> Iterator[IterationTimes]:
    """generating: iteration -> seconds that an engine worked."""
    keys = [f"seconds/{phase}" for phase in ("prepare", "learn", "sync", "checkpoint", "evaluate", "iteration")]
    times = {key: dict(ledger.metrics.history(run, key)) for key in keys}
    lengths = [dict(ledger.metrics.history(run, f"length/{part}_mean")) for part in ("prompt", "response")]
    samples = spec.data.prompts_per_iteration * spec.rollout.samples_per_prompt
    for iteration, generated in generating.items():
        if iteration not in times["seconds/learn"] or iteration not in lengths[1]:
            continue
        seconds = {key.removeprefix("seconds/"): found.get(iteration, 0.0) for key, found in times.items()}
        counted = sum(seconds[phase] for phase in ("prepare", "learn", "sync", "checkpoint", "evaluate"))
        yield IterationTimes(
            tokens=samples * sum(length[iteration] for length in lengths),
            learning=seconds["prepare"] + seconds["learn"],
            sync=seconds["sync"],
            checkpoint=times["seconds/checkpoint"].get(iteration),
            rest=max(0.0, seconds["iteration"] - counted - generated),
        )


def _batches(ledger: Ledger, home: Home, run: str, iteration: int, spec: RunSpec) -> Iterator[BatchWork]:
    """Work and seconds of each shard of an iteration that this run made and timed."""
    commit = ledger.commits.at(run, iteration)
    if commit is None:
        return
    folder = home.run_folder(commit.run)
    files = read_telemetry(folder, commit.branch, iteration)
    seconds = {
        shard: timing[GENERATE]
        for name, shards in sorted(files.items())
        if name.startswith(COLLECT_PREFIX)
        for shard, timing in shards.items()
        if isinstance(timing, dict) and _is_time(timing.get(GENERATE))
    }
    for row in ledger.records.shards(commit.run, commit.branch, iteration):
        name = f"shard-{row.shard:04d}"
        # Experience that nobody needs any more may be deleted (`retention`).
        if row.wave == 0 and name in seconds and (folder / row.folder).is_dir():
            batch = load_batch(folder, [ShardRef(row.folder, row.manifest_sha256)])
            yield _work(batch.prompt_lengths, batch.response_lengths, spec, seconds[name])


def _is_time(seconds: object) -> bool:
    """Whether a file that nobody vouches for gives seconds there."""
    return isinstance(seconds, int | float) and 0.0 < seconds < math.inf


def _work(prompts: np.ndarray, responses: np.ndarray, spec: RunSpec, seconds: float) -> BatchWork:
    """Of decode batches that are cut as controllers cut them: whole prompts, at most `rollout.batch_samples` responses."""
    samples = spec.rollout.samples_per_prompt
    size = max(1, spec.rollout.batch_samples // samples) * samples
    steps = sum(int(responses[start : start + size].max()) for start in range(0, len(responses), size))
    context = prompts * responses + responses * (responses - 1) // 2
    lengths = tuple(prompts.tolist()), tuple(responses.tolist())
    return BatchWork(steps, int(responses.sum()), int(context.sum()), seconds, *lengths)
