"""A ledger like that of a team after a year, made within a minute: many short runs, and one very long one.

Consumes an empty ledger and a home folder. Produces rows of all tables that the dashboard reads, which the database makes itself
from a counter, and of the long run's newest iteration sealed experience and logs. Values are arithmetic of the row's number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    cast,
    insert,
    literal,
    null,
    select,
    text,
    update,
)

from db.core.engine import Fence
from db.core.holder import this_process
from db.core.models import (
    Checkpoint,
    ControlState,
    DriverSession,
    Event,
    Iteration,
    MetricPoint,
    MetricSeries,
    Outbox,
    PhaseAttempt,
    PlacementDecision,
    Run,
    Shard,
)
from db.ledger import Ledger
from db.write.events import GENESIS
from db.write.records import ShardRow
from flows.run.control_state import ControlState as StateOfFlow
from flows.run.home import Home
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.spec import RunSpec

RUNS, ITERATIONS, SHORT = 1_000, 100_000, 50
"""Runs, iterations of the long one, and of each other one."""
START = 1_700_000_000_000
PHASES = ("place", "collect", "prepare", "learn", "sync", "commit")
PHASE_MS, ITERATION_MS = 9_000, 60_000
FAILING, SESSION, CHECKPOINT = 400, 1_000, 200
"""Every so many iterations an attempt fails, a session begins, a checkpoint is taken."""
METRICS = (
    "reward/mean", "reward/std", "accuracy", "evaluation/accuracy", "kl", "entropy", "length/response_mean",
    "truncated_fraction", "clip_fraction", "ratio_min", "ratio_max", "grad_norm",
    "train_rollout_logprob_diff_mean", "train_rollout_logprob_diff_max", "loss",
    "policy_loss", "learning_rate", "tokens", "reward/exact", "zero_spread_fraction",
)  # fmt: skip
TIMINGS = (
    *(f"seconds/{phase}" for phase in PHASES),
    "seconds/iteration",
    "tokens_per_second",
    "driver_bytes_per_sample",
)
SHARDS, PROMPTS, SAMPLES = 4, 16, 8
Number = ColumnElement[int]


def seed(ledger: Ledger, home: Home, spec: RunSpec, runs: int = RUNS, iterations: int = ITERATIONS) -> str:
    """Fills an empty ledger; returns the long run's id, which is driven."""
    document = spec.model_dump(mode="json")
    for _ in range(runs - 1):
        ledger.runs.create("short", document, spec.digest, SHORT)
    run = ledger.runs.create("long", document, spec.digest, 2 * iterations).id
    fence = ledger.leases.acquire(run, this_process("benchmark"), 24 * 3600)
    ledger.leases.start_session(fence, "", "long session")
    ledger.runs.set_state(fence, "running")
    newest = _begin_of(iterations)
    with ledger._database.write() as connection:
        _short_runs(connection)
        _long_run(connection, run, iterations, StateOfFlow.initial(spec.data).to_json())
        connection.execute(
            update(Run)
            .where(Run.id == run)
            .values(iteration=iterations, committed_at=newest, created_at=START, event_seq=iterations + 20)
        )
    _files(ledger, home, fence, iterations)
    with ledger._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    return run


def _begin_of(iteration: int) -> int:
    return START + iteration * ITERATION_MS


def _counter(last: int, first: int = 0, name: str = "counter") -> Any:
    """A table of the numbers first..last."""
    numbers = select(literal(first, BigInteger).label("i")).cte(name, recursive=True)
    return numbers.union_all(select(numbers.c.i + 1).where(numbers.c.i < last))


def _json(value: Mapping[str, Any]) -> ColumnElement[Any]:
    return literal(dict(value), JSON)


def _insert(connection: Connection, table: Any, source: Any, values: Mapping[str, Any]) -> None:
    """One row of the table for each of the source's."""
    columns = [value if isinstance(value, ColumnElement) else literal(value) for value in values.values()]
    connection.execute(insert(table).from_select(list(values), select(*columns).select_from(source)))


def _short_runs(connection: Connection) -> None:
    """Commits, metrics and a fault of every short run, which are over."""
    short = Run.spec_name == "short"
    connection.execute(
        update(Run)
        .where(short)
        .values(state="completed", iteration=SHORT, committed_at=_begin_of(SHORT), created_at=START)
    )
    for key in ("reward/mean", "entropy", "kl", "seconds/iteration"):
        query = select(Run.id, literal(key), literal("result")).where(short)
        connection.execute(insert(MetricSeries).from_select(["run", "key", "metric_class"], query))
    steps = _counter(SHORT)
    number = (MetricSeries.id * 37 + steps.c.i * 7919) % 1000
    points = (
        select(MetricSeries.id, literal(0), steps.c.i, number / 1000.0)
        .select_from(MetricSeries)
        .join(steps, literal(True))
    )
    connection.execute(insert(MetricPoint).from_select(["series", "branch", "step", "value"], points))


def _long_run(connection: Connection, run: str, iterations: int, state: Mapping[str, Any]) -> None:
    steps = _counter(iterations)
    step: Number = steps.c.i
    at = literal(START, BigInteger) + step * ITERATION_MS
    key = {"run": run, "branch": 0, "iteration": step}
    digest = cast(step, Text)
    committed = key | {"term": 1, "experience_digest": digest, "weights_digest": digest}
    _insert(connection, Iteration, steps, committed | {"fingerprint": _json({"loss": 0.5}), "committed_at": at})
    _insert(connection, ControlState, steps, key | {"state": _json(state)})
    _attempts(connection, steps, key, at)
    decision = _json({"mode": "dynamic", "start": "rrrrrrjj", "state": {}})
    inputs = _json({"setting": {"switch": {"role_s": 1.0}}, "past": [], "state": {}, "policy": {"kind": "dynamic"}})
    placed = key | {
        "seq": 0,
        "term": 1,
        "inputs": inputs,
        "decision": decision,
        "prediction": _json({"collect": 10.0}),
    }
    outcome = _json({"collect_s": 11.0, "judging_s": 4.0, "seconds": {"collect": 11.0}})
    reason = "two devices judge: the judge's backlog is 3 s, and a switch takes 1 s"
    behind = select(steps.c.i).where(steps.c.i > 0).subquery()
    later = {name: behind.c.i if value is step else value for name, value in placed.items()}
    _insert(connection, PlacementDecision, behind, later | {"reason": reason, "outcome": outcome, "recorded_at": START})
    body = _json({"branch": 0, "term": 1, "experience_digest": "d" * 64, "weights_digest": "d" * 64, "iteration": 1})
    link = {
        "run": run,
        "seq": step + 20,
        "at": at,
        "kind": "commit",
        "body": body,
        "prev_hash": GENESIS,
        "hash": GENESIS,
    }
    _insert(connection, Event, steps, link)
    told = {"id": literal("long/") + digest, "run": run, "kind": "metrics", "payload": _json({"iteration": 1})}
    _insert(connection, Outbox, steps, told | {"logged_at": at, "claims": 1, "delivered_at": at})
    _sparse(connection, run, iterations)
    for metric in (*METRICS, *TIMINGS):
        metric_class = "result" if metric in METRICS else "timing"
        made = insert(MetricSeries).values(run=run, key=metric, metric_class=metric_class).returning(MetricSeries.id)
        number = connection.execute(made).scalar_one()
        value = (step * (7919 + number) % 1000) / 1000.0 + step / float(iterations)
        _insert(connection, MetricPoint, steps, {"series": number, "branch": 0, "step": step, "value": value})
    shards = _counter(SHARDS - 1, name="shards")
    both = steps.join(shards, (literal(True)) & (steps.c.i > 0) & (steps.c.i < iterations))
    sealed = key | {"wave": 0, "shard": shards.c.i, "term": 1, "folder": literal("gone/") + digest}
    sealed |= {"manifest_sha256": "d" * 64, "samples": 128, "tokens": 65_536, "sums": _json({"samples": 128.0})}
    many = {"group_digests": literal(bytes(32 * PROMPTS)), "adopted": literal(False), "recorded_at": at}
    _insert(connection, Shard, both, sealed | many)


def _attempts(connection: Connection, steps: Any, key: Mapping[str, Any], at: Number) -> None:
    """The phases of every iteration, and now and then a first attempt that failed."""
    receipt = _json({"digest": "d" * 64, "tokens": 65_536})
    for place, phase in enumerate(PHASES):
        begin = at + place * PHASE_MS
        times = {"planned_at": begin, "dispatched_at": begin + 5, "ended_at": begin + PHASE_MS - 10}
        done = {"state": "DONE", "receipt": receipt, "seconds": 8.9, "bytes_to_driver": 1000, "term": 1}
        _insert(connection, PhaseAttempt, steps, {**key, "phase": phase, "number": 2, **done, **times})
    failed = select(steps.c.i).where(steps.c.i % FAILING == 1).subquery()
    begin = literal(START, BigInteger) + failed.c.i * ITERATION_MS + PHASE_MS - 1_000
    values = {**key, "iteration": failed.c.i, "phase": "collect", "number": 1, "state": "FAILED", "term": 1}
    values |= {"planned_at": begin, "dispatched_at": begin + 5, "ended_at": begin + 900, "seconds": 0.9}
    values |= {"failure_class": "infrastructure", "reason": "rollout-3 was lost", "receipt": null()}
    _insert(connection, PhaseAttempt, failed, values)


def _sparse(connection: Connection, run: str, iterations: int) -> None:
    """Checkpoints and sessions, of which there are few."""
    taken = _counter(iterations // CHECKPOINT)
    place = taken.c.i * CHECKPOINT
    row = {
        "run": run,
        "branch": 0,
        "iteration": place,
        "term": 1,
        "folder": literal("checkpoints/") + cast(place, Text),
    }
    row |= {"manifest_sha256": "d" * 64, "bytes": 10**9, "weights_digest": cast(place, Text), "seconds": 3.5}
    _insert(connection, Checkpoint, taken, row | {"state": "pruned", "recorded_at": literal(START, BigInteger) + place})
    sessions = _counter(iterations // SESSION, first=2)
    begin = literal(START, BigInteger) + sessions.c.i * SESSION * ITERATION_MS
    row = {"run": run, "term": sessions.c.i, "flow_run_id": "", "flow_run_name": "long session", "started_at": begin}
    _insert(
        connection,
        DriverSession,
        sessions,
        row | {"ended_at": begin + SESSION * ITERATION_MS - 5_000, "outcome": "ended"},
    )


def _files(ledger: Ledger, home: Home, fence: Fence, iteration: int) -> None:
    """Experience of the newest iteration and of the one before it, and logs."""
    folder = home.run_folder(fence.run)
    (folder / "logs").mkdir(parents=True)
    for number in (iteration - 1, iteration):
        for shard in range(SHARDS):
            log = ShardLog(folder, WorkKey(fence.run, 0, number, "collect", shard=shard), fence.term)
            receipt = log.seal(_samples(number, shard), {"generate": 0.1})
            names = ("folder", "manifest_sha256", "samples", "tokens", "group_digests")
            facts = {name: getattr(receipt, name) for name in names} | {"sums": dict(receipt.sums)}
            row = ShardRow(branch=0, iteration=number, wave=0, shard=shard, term=fence.term, **facts)
            with ledger._database.write() as connection:
                place = (Shard.run == fence.run, Shard.iteration == number, Shard.shard == shard)
                connection.execute(Shard.__table__.delete().where(*place))  # type: ignore[attr-defined]
            ledger.records.shard(fence, row)
    for actor in ("driver", *(f"controller-{number}" for number in range(7))):
        lines = (
            {
                "time": START / 1000 + n,
                "level": "info",
                "actor": actor,
                "iteration": n,
                "phase": "collect",
                "message": "shard",
            }
            for n in range(10_000)
        )
        (folder / "logs" / f"t0001.{actor}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _samples(iteration: int, shard: int) -> pa.Table:
    rows = []
    for prompt in range(PROMPTS):
        for sample in range(SAMPLES):
            reward = ((shard * PROMPTS + prompt) * 7 + sample) % 10 / 10
            rows.append(
                {
                    "prompt_ordinal": (iteration * SHARDS + shard) * PROMPTS + prompt,
                    "sample": sample,
                    "prompt_id": f"p{shard * PROMPTS + prompt}",
                    "source": 0,
                    "prompt": f"Question {prompt}? " * 20,
                    "prompt_tokens": [1] * 100,
                    "response": f"Thought {sample}. " * 150,
                    "response_tokens": [2] * 512,
                    "log_probs_sampler": [-0.5] * 512,
                    "loss_mask": [True] * 512,
                    "finish": "stop",
                    "truncated": False,
                    "weight_version": iteration - 1,
                    "reward": reward,
                    "correct": reward > 0.5,
                    "reward_error": None,
                    "reward/exact": reward,
                }
            )
    return pa.Table.from_pylist(rows, schema=experience_schema(["exact"]))
