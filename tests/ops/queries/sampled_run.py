"""A run whose experience has everything that the rollout browser shows: real prompts, parts, waves and advantages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.records import WaveRow
from flows.run.home import Home
from tests.ops.seeding import PROMPTS, SAMPLES, SHARDS, commit_of, seal_iteration, toy_spec
from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule, WaveGroups
from yatt_core.experience.prepared import PreparedColumns, write_prepared
from yatt_core.experience.table import experience_schema
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.spec import RunSpec

GROUPS = SHARDS * PROMPTS
TRAIN = 5
"""The second iteration draws the prompt that the first left, and some of the others again."""
PARTS = ("exact", "format")


def sampled_spec() -> RunSpec:
    """Returns the spec: five training prompts, of which an iteration draws four."""
    spec = toy_spec()
    source = spec.data.sources[0].model_copy(update={"size": spec.data.probe + TRAIN})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"sources": (source,)})})


def seed_sampled_run(home: Home, iterations: int = 2) -> str:
    """Creates the run.

    In every iteration, the first group's rewards are equal, the next two groups are used, and the last one is surplus.
    """
    spec = sampled_spec()
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, 4).id
        home.run_folder(run).mkdir()
        materialise(spec, home.run_folder(run))
        fence = ledger.leases.acquire(run, this_process(f"driver of {run}"), 600)
        ledger.commits.commit(fence, commit_of(0))
        cursor = Cursor.start(spec.data)
        for iteration in range(1, iterations + 1):
            cursor = _iteration(home, ledger, fence, spec, iteration, cursor)
        ledger.leases.release(fence)
    return run


def _iteration(home: Home, ledger: Ledger, fence: Fence, spec: RunSpec, iteration: int, cursor: Cursor) -> Cursor:
    references, after = draw(spec.data, spec.seed, cursor, GROUPS)
    inputs = Inputs.open(home.run_folder(fence.run) / INPUTS, spec)
    prompts = {reference.ordinal: inputs.prompt(reference) for reference in references}
    sampling = Sampling(SamplingRule(target=2, shards=SHARDS, filters=True, overdraw=2.0))
    plan = sampling.plan()
    body = asdict(plan) | {"cursor": cursor.to_json()}
    ledger.records.wave(fence, WaveRow(0, iteration, 0, body))

    def written(table: pa.Table) -> pa.Table:
        rows = []
        for row in table.drop(["reward/virtual"]).to_pylist():
            prompt = prompts[row["prompt_ordinal"]]
            sample = row["sample"]
            exact = 0.0 if row["prompt_ordinal"] % GROUPS == 0 else float(sample)
            tokens = 2 + (row["prompt_ordinal"] % GROUPS) * SAMPLES + sample
            rows.append(
                row
                | {"prompt_id": prompt.prompt_id, "prompt": prompt.text, "reward": exact + 0.25}
                | {"reward/exact": exact, "reward/format": 0.5, "response_tokens": [4] * tokens}
                | {"log_probs_sampler": [-0.5] * tokens, "loss_mask": [True] * tokens}
                | {"finish": "length" if sample else "stop", "truncated": bool(sample)}
            )
        return pa.Table.from_pylist(rows, schema=experience_schema(PARTS))

    seal_iteration(home, ledger, fence, iteration, written)
    ordinals = np.arange(GROUPS) + cursor.ordinal
    valid = ordinals % GROUPS != 0
    outcome = sampling.settle(plan, WaveGroups(ordinals, valid, np.full(GROUPS, 10)), SHARDS)
    ledger.records.settle_wave(fence, 0, iteration, 0, outcome.to_json())
    _prepare(home, ledger, fence, iteration, list(outcome.admitted))
    ledger.commits.commit(fence, commit_of(iteration))
    return after


def _prepare(home: Home, ledger: Ledger, fence: Fence, iteration: int, admitted: list[int]) -> None:
    """Writes an advantage of -1 and 1 for the two samples of every admitted group, each group on a rank of its own."""
    key = WorkKey(fence.run, 0, iteration, "prepare")
    columns = [
        PreparedColumns(
            np.array([ordinal] * SAMPLES, np.int64),
            np.arange(SAMPLES, dtype=np.int32),
            np.array([-1.0, 1.0]),
            np.array([0, 2, 4], np.int64),
        )
        for ordinal in reversed(admitted)
    ]
    folder, files = write_prepared(home.run_folder(fence.run), key, fence.term, columns)
    attempt = ledger.phases.plan(fence, 0, iteration, "prepare")
    ledger.phases.dispatch(fence, attempt)
    receipt: dict[str, Any] = {"folder": folder, "files": files}
    ledger.phases.finish(fence, attempt, receipt, 0.1)
