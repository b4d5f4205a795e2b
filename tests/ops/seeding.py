"""Seeds a ledger and run folders as a driver leaves them, by the ledger's own calls, without a flow, Ray or a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import RESULT, TIMING, Metric
from db.write.records import ShardRow
from flows.run.control_state import ControlState
from flows.run.home import Home
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.logs import COPIED, LOST, NOTE
from yatt_core.spec import RunSpec, parse_spec

SHARDS = 2
PROMPTS = 2
SAMPLES = 2


def toy_spec(iterations: int = 4) -> RunSpec:
    """Returns the spec of a small virtual run."""
    tree = {
        "name": "toy",
        "iterations": iterations,
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 200}],
            "held_out": 20,
            "probe": 20,
        },
        "rollout": {"engine": {"kind": "virtual", "clock_factor": 1e6}, "max_new_tokens": 8},
        "trainer": {"engine": {"kind": "virtual", "clock_factor": 1e6}},
        "rewards": {"parts": [{"name": "virtual", "function": "virtual_score"}], "correct_at": 0.5},
    }
    return parse_spec(tree, "toy")


def seed_run(home: Home, committed: int = 2, spec: RunSpec | None = None, ends: bool = True) -> str:
    """Creates a run with iterations 0..committed, sealed experience and logs. ends: also ends its session."""
    spec = spec or toy_spec()
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, spec.iterations).id
        home.run_folder(run).mkdir()
        fence = ledger.leases.acquire(run, this_process(f"driver of {run}"), 600)
        ledger.leases.start_session(fence, "", f"{run} session 1")
        ledger.runs.set_state(fence, "running")
        for iteration in range(committed + 1):
            if iteration:
                seal_iteration(home, ledger, fence, iteration)
            state = replace(ControlState.initial(spec.data), iteration=iteration)
            ledger.commits.commit(fence, commit_of(iteration, state.to_json()))
        write_logs(home.run_folder(run))
        if ends:
            ledger.runs.set_state(fence, "stopped", "stop requested")
            ledger.events.append(run, "session_ended", {"term": 1, "seconds": 12.5}, fence)
            ledger.leases.end_session(fence, "ended")
            ledger.leases.release(fence)
    return run


def commit_of(iteration: int, state: Mapping[str, Any] = MappingProxyType({})) -> IterationCommit:
    metrics = [Metric("evaluation/accuracy", 0.25 + iteration / 8, RESULT)]
    if iteration == 0:
        metrics.append(Metric("sft/seconds", 3.5, TIMING))
    else:
        metrics += [Metric("reward/mean", iteration / 10, RESULT), Metric("entropy", 2.0, RESULT)]
        metrics += [Metric("tokens_per_second", 512.0, TIMING)]
    return IterationCommit(
        branch=0,
        iteration=iteration,
        control_state=dict(state),
        logged_at_ms=1000 + iteration,
        experience_digest=f"experience {iteration}" if iteration else None,
        weights_digest=f"weights {iteration}",
        metrics=metrics,
    )


def seal_iteration(
    home: Home,
    ledger: Ledger,
    fence: Fence,
    iteration: int,
    change: Callable[[pa.Table], pa.Table] = lambda table: table,
    judgements: Callable[[pa.Table], pa.Table | None] = lambda table: None,
) -> None:
    """Seals shards, and records a `collect` that sent 100 bytes per sample to the driver.

    change: a function applied to each shard's table before it is sealed.
    judgements: returns the judges' verdicts on a shard's samples; None without judges.
    """
    attempt = ledger.phases.plan(fence, 0, iteration, "collect")
    ledger.phases.dispatch(fence, attempt)
    for shard in range(SHARDS):
        key = WorkKey(fence.run, 0, iteration, "collect", shard=shard)
        log = ShardLog(home.run_folder(fence.run), key, fence.term)
        table = change(samples_table(iteration, shard))
        receipt = log.seal(table, {"generate": 0.1}, judgements(table))
        ledger.records.shard(
            fence,
            ShardRow(
                branch=0,
                iteration=iteration,
                wave=0,
                shard=shard,
                term=fence.term,
                folder=receipt.folder,
                manifest_sha256=receipt.manifest_sha256,
                samples=receipt.samples,
                tokens=receipt.tokens,
                group_digests=receipt.group_digests,
                sums=dict(receipt.sums),
            ),
        )
    ledger.phases.finish(fence, attempt, {}, 0.5, 100 * SHARDS * PROMPTS * SAMPLES)


def samples_table(iteration: int, shard: int) -> pa.Table:
    """Returns two prompts with two samples each; the reward identifies the sample: ordinal / 100 + sample / 10."""
    rows = [(shard * PROMPTS + prompt, sample) for prompt in range(PROMPTS) for sample in range(SAMPLES)]
    first = (iteration - 1) * SHARDS * PROMPTS
    values = [
        {
            "prompt_ordinal": first + number,
            "sample": sample,
            "prompt_id": f"p{number}",
            "source": 0,
            "prompt": f"Spell word {number} backward, please",
            "prompt_tokens": [1, 2, 3],
            "response": f"answer {number}.{sample}",
            "response_tokens": [4, 5],
            "log_probs_sampler": [-0.5, -0.25],
            "loss_mask": [True, True],
            "finish": "stop",
            "truncated": False,
            "weight_version": iteration - 1,
            "reward": number / 100 + sample / 10,
            "correct": sample == 1,
            "reward_error": None,
            "reward/virtual": number / 100 + sample / 10,
        }
        for number, sample in rows
    ]
    return pa.Table.from_pylist(values, schema=experience_schema(["virtual"]))


def write_logs(folder: Path) -> None:
    """Writes the logs of two actors."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    records = {
        "t0001.driver.jsonl": [
            {"time": 1.0, "level": "info", "actor": "driver", "logger": "x", "message": "driver started, pid 7"},
            {
                "time": 4.0,
                "level": "warning",
                "actor": "driver",
                "iteration": 1,
                "phase": "learn",
                "logger": "x",
                "message": "slow",
            },
        ],
        "t0001.controller-0.jsonl": [
            {
                "time": 2.0,
                "level": "info",
                "actor": "controller-0",
                "iteration": 1,
                "phase": "collect",
                "logger": "x",
                "message": "shard 0",
            },
            {
                "time": 3.0,
                "level": "error",
                "actor": "controller-0",
                "iteration": 2,
                "phase": "collect",
                "logger": "x",
                "message": "shard 1",
            },
        ],
    }
    for name, lines in records.items():
        (folder / "logs" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_copied_logs(folder: Path, node: str, lost_since: float | None = None) -> None:
    """Writes what a driver has copied from another node's disk: a record of trainer-1, which wrote it at 6 s since 1970.

    lost_since: when the node was last reached, if it is gone.
    """
    copied = folder / "logs" / f"{COPIED}{node}.abcd"
    copied.mkdir(parents=True)
    (copied / NOTE).write_text(json.dumps({"node": node, LOST: lost_since}))
    record = {"time": 6.0, "level": "info", "actor": "trainer-1", "message": "learned there"}
    (copied / "t0001.trainer-1.jsonl").write_text(json.dumps(record) + "\n")
