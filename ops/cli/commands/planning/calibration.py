"""Fits the time model of `yatt plan --calibrate` to a run: phase times from the ledger, shard times from telemetry.

Consumes a ledger, the home folder and a run's id; produces the fitted constants. Reads sealed experience along the current
line of iterations for the lengths of responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flows.run.home import Home
from yatt_core.errors import DataError
from yatt_core.experience.batch import load_batch
from yatt_core.experience.telemetry import read_telemetry, telemetry_figure
from yatt_core.planning.time.fitted import BatchWork, FittedConstants, IterationTimes, fit
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec import RunSpec, parse_spec

if TYPE_CHECKING:
    from db.ledger import Ledger

NEWEST = 20
"""Number of newest iterations used."""
GENERATE = "generate"
"""Key in a shard's timing whose value is the total duration of the shard's decode batches, in seconds."""


def calibrate(ledger: Ledger, home: Home, run: str, planned: RunSpec) -> FittedConstants:
    """Fits the constants to a run.

    planned: the spec to be planned, which is compared with the run's.

    Raises `DataError` if the run has no commit yet.
    """
    row = ledger.runs.find(run)
    if row.iteration < 1:
        raise DataError(f"run {run}: has no committed iteration yet to calibrate the plan from")
    spec = parse_spec(ledger.runs.revision(run).spec, f"the ledger's spec of {run}")
    newest = range(max(1, row.iteration - NEWEST + 1), row.iteration + 1)
    batches = {
        iteration: list(_batches(ledger=ledger, home=home, run=run, iteration=iteration, spec=spec))
        for iteration in newest
    }
    generating = {
        iteration: sum(batch.seconds for batch in shards) / spec.rollout.engine.instances
        for iteration, shards in batches.items()
    }
    iterations = list(_iterations(ledger, run, generating, spec))
    found = fit(run, [batch for shards in batches.values() for batch in shards], iterations, spec.trainer.engine.ranks)
    if others := _others(spec, planned):
        return replace(found, told=(*found.told, f"{run} and the plan differ in {', '.join(others)}"))
    return found


def _others(recorded: RunSpec, planned: RunSpec) -> list[str]:
    """Returns the keys that affect times and differ between the two specs."""
    pairs = {
        "model": (recorded.model, planned.model),
        "rollout.engine.kind": (recorded.rollout.engine.kind, planned.rollout.engine.kind),
        "trainer.engine.kind": (recorded.trainer.engine.kind, planned.trainer.engine.kind),
    }
    return [key for key, (before, now) in pairs.items() if before != now]


def _iterations(ledger: Ledger, run: str, generating: Mapping[int, float], spec: RunSpec) -> Iterator[IterationTimes]:
    """Yields the iterations whose times are known.

    generating: iteration -> seconds that an engine was busy, averaged over the engines.
    """
    phases = ("prepare", "learn", "sync", "checkpoint", "evaluate")
    times = {phase: dict(ledger.metrics.history(run, f"seconds/{phase}")) for phase in (*phases, "iteration")}
    lengths = [dict(ledger.metrics.history(run, f"length/{part}_mean")) for part in ("prompt", "response")]
    samples = spec.data.prompts_per_iteration * spec.rollout.samples_per_prompt
    for iteration, generated in generating.items():
        if iteration not in times["learn"] or iteration not in lengths[1]:
            continue
        seconds = {phase: found.get(iteration, 0.0) for phase, found in times.items()}
        counted = sum(seconds[phase] for phase in phases)
        yield IterationTimes(
            tokens=samples * sum(length[iteration] for length in lengths),
            learning=seconds["prepare"] + seconds["learn"],
            sync=seconds["sync"],
            checkpoint=times["checkpoint"].get(iteration),
            rest=max(0.0, seconds["iteration"] - counted - generated),
        )


def _batches(ledger: Ledger, home: Home, run: str, iteration: int, spec: RunSpec) -> Iterator[BatchWork]:
    """Yields the work and seconds of each timed shard of an iteration."""
    commit = ledger.commits.at(run, iteration)
    if commit is None or spec.sliced:  # a shard's seconds are then those of parts of its responses
        return
    folder = home.run_folder(commit.run)
    files = read_telemetry(folder, commit.branch, iteration)
    for row in ledger.records.shards(commit.run, commit.branch, iteration):
        # There is one file per wave and term; a shard that was generated again counts with its last timing.
        wave = f"collect.w{row.wave:02d}."
        shard = f"shard-{row.shard:04d}"
        timings = [shards.get(shard) for name, shards in sorted(files.items()) if name.startswith(wave)]
        seconds = [found for timing in timings if (found := telemetry_figure(timing, GENERATE))]
        # Experience that is no longer needed may have been deleted (`retention`).
        if seconds and (folder / row.folder).is_dir():
            batch = load_batch(folder, [ShardRef(row.folder, row.manifest_sha256)])
            yield _work(batch.prompt_lengths, batch.response_lengths, spec, seconds[-1])


def _work(prompts: np.ndarray, responses: np.ndarray, spec: RunSpec, seconds: float) -> BatchWork:
    """Returns a shard's work, divided into decode batches as by controllers.

    Each batch has whole prompts, and at most `rollout.batch_samples` responses.
    """
    samples = spec.rollout.samples_per_prompt
    size = max(1, spec.rollout.batch_samples // samples) * samples
    steps = sum(int(responses[start : start + size].max()) for start in range(0, len(responses), size))
    context = prompts * responses + responses * (responses - 1) // 2
    return BatchWork(
        steps=steps,
        sequence_steps=int(responses.sum()),
        context_steps=int(context.sum()),
        seconds=seconds,
        prompts=tuple(prompts.tolist()),
        responses=tuple(responses.tolist()),
    )
