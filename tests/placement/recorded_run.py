"""Records a run's placements as a driver leaves them: real decisions, with work and times from the simulator.

Uses neither Ray nor a flow: the ledger and the run's folder are filled through the product's own calls.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.records import DecisionRow
from flows.driver.context import RunContext
from flows.phases.placement import decide
from flows.placement.prefetch import PlacementPrefetch
from flows.placement.work_files import RecordedWork, work_file, write_work
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.ops.seeding import commit_of
from tests.placement.workloads import small
from tests.services import ROOT
from yatt_core.dispatch.pool import constants_known, pool_setting
from yatt_core.placement.actions import Action, serves_line
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.seen import PoolSeen, RuntimePolicy
from yatt_core.placement.simulation.campaign import collect, draw_iterations
from yatt_core.spec import RunSpec, load_spec


class Watched:
    """A runtime policy whose log is like a dispatcher's: its actions, and when instances begin to serve a role."""

    def __init__(self, runtime_policy: RuntimePolicy) -> None:
        self._runtime_policy = runtime_policy
        self._serving: dict[int, str] = {}
        self.lines: list[dict[str, Any]] = []

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        for instance in pool.instances:
            role = instance.role if instance.ready else ""
            if moment is Moment.SWITCHED and role and self._serving.get(instance.index) != role:
                self.lines.append({"t": round(pool.now, 3), **serves_line(instance.index, role)})
            if role:
                self._serving[instance.index] = role
        return self._runtime_policy.act(moment, pool)

    def log(self, line: dict[str, Any]) -> None:
        self.lines.append(line | {"t": round(line["t"], 3)})


class DecidingSession:
    """The parts of a driver session that `decide` needs."""

    def __init__(self, home: Home, ledger: Ledger, fence: Fence, spec: RunSpec) -> None:
        self.context = RunContext.of(home, spec, ledger, fence, SilentObserver())
        self.prefetch = PlacementPrefetch(find_policy(spec.placement, constants_known(spec)))
        self.start = self.actors = self
        self.deadline = 60.0
        self.devices = spec.rollout.engine.instances


def judged_spec(*overrides: str) -> RunSpec:
    """Returns the spec of four virtual instances that roll out and judge."""
    return load_spec(ROOT / "tests" / "specs" / "judged.yaml", overrides)


def record_run(
    home: Home,
    spec: RunSpec,
    iterations: int = 4,
    under_way: bool = False,
    slower: float = 1.0,
    devices: int | None = None,
    trainer_lines: Sequence[tuple[float, dict[str, Any]]] = (),
    **samples: Any,
) -> str:
    """Records a run and returns its id.

    samples: settings of the samples in its iterations' workload.
    slower: how many times slower the engines are than in the spec.
    under_way: True to add a decision without an outcome.
    devices: of the cluster; None: one for each instance.
    trainer_lines: with their times, the lines of each iteration's log about the trainer's devices.
    """
    home.folder.mkdir(parents=True, exist_ok=True)
    lengths = {"median": 60, "sigma": 0.6, "min": 4, "max": 400}
    workload = small(judgements=2, prompts=8, response=lengths, judge=lengths | {"median": 20}, **samples)
    waves = draw_iterations(workload.model_copy(update={"iterations": iterations}))
    setting = pool_setting(spec)
    real = replace(setting, speeds=tuple(speed / slower for speed in setting.speeds))
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create(spec.name, spec.model_dump(mode="json"), spec.digest, spec.iterations).id
        home.run_folder(run).mkdir()
        fence = ledger.leases.acquire(run, this_process("a test"), 600)
        session: Any = DecidingSession(home, ledger, fence, spec)
        session.devices = devices or session.devices
        ledger.commits.commit(fence, commit_of(0))
        state: dict[str, Any] = {}
        roles: str | None = None
        for iteration in range(1, iterations + 1):
            placement, runtime_policy = decide(session, iteration, state)
            row = placement.decision
            watched = Watched(runtime_policy)
            roles_now = row.decision["start"]
            work = None
            if setting.judgements:
                telemetry = collect(real, roles_now, watched, waves[iteration - 1], roles, watched.log)
                told = [{"t": at, **line} for at, line in trainer_lines]
                work = RecordedWork(telemetry, sorted([*told, *watched.lines], key=lambda line: line["t"]))
            finish(session.context, row, work)
            ledger.commits.commit(fence, commit_of(iteration))
            state = row.decision["state"]
            roles = roles_now
        if under_way:
            decide(session, iterations + 1, state)
        ledger.leases.release(fence)
    return run


def finish(context: RunContext, row: DecisionRow, work: RecordedWork | None) -> None:
    """Records the outcome of a decision. work: None if no device judges."""
    outcome: dict[str, Any] = {"seconds": {"collect": 0.25, "learn": 0.5}}
    if work is not None:
        path = work_file(context.home.run_folder(context.run), 0, row.iteration)
        outcome |= {
            "work_sha256": write_work(path, work, row.inputs["setting"]),
            "collect_s": work.telemetry.collect_s,
            "judging_s": work.telemetry.judging_s,
            "actions": work.actions,
            "actions_total": len(work.actions),
        }
    context.ledger.records.decision_outcome(context.fence, 0, row.iteration, row.seq, outcome)


def rewrite(home: Home, run: str, iteration: int, part: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a part of a recorded decision behind the ledger's back, like a defect or a manual edit."""
    with closing(sqlite3.connect(home.folder / "ledger.db")) as connection, connection:
        where = "where run = ? and iteration = ?"
        (text,) = connection.execute(f"select {part} from placement_decision {where}", (run, iteration)).fetchone()
        value = json.loads(text)
        change(value)
        connection.execute(f"update placement_decision set {part} = ? {where}", (json.dumps(value), run, iteration))
