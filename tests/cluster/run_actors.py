"""Virtual actors on a Ray head, and drivers in separate processes that are killed in the middle of their work."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from tests.cluster.conftest import Head
from yatt_core.cluster.driver_signs import DriverBeat
from yatt_core.cluster.metering import BytesMeter
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import BatchTask, ShardReceipt, ShardRef, ShardTask
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spec import RunSpec, load_spec

ROOT = Path(__file__).parent.parent.parent
RUN = "run"


def actors_spec(*overrides: str) -> RunSpec:
    """Returns a spec with two actors of each kind; its deadline is generous, since two cores may be busy."""
    counts = ("controllers.count=2", "rollout.engine.instances=2", "trainer.engine.ranks=2")
    return load_spec(ROOT / "tests" / "specs" / "virtual.yaml", [*counts, *overrides])


def shard_tasks(spec: RunSpec, term: int, iteration: int = 1) -> list[ShardTask]:
    """Returns an iteration's tasks, one shard for each prompt."""
    references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), spec.data.prompts_per_iteration)
    return [
        ShardTask(WorkKey(RUN, 0, iteration, "collect", shard=i), term, (reference,), iteration - 1)
        for i, reference in enumerate(references)
    ]


def batch_of(receipts: Sequence[ShardReceipt], term: int, iteration: int = 1, phase: str = "learn") -> BatchTask:
    """Returns the trainer's task for these shards."""
    ordered = sorted(receipts, key=lambda receipt: receipt.key.shard)
    references = tuple(ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in ordered)
    return BatchTask(WorkKey(RUN, 0, iteration, phase), term, references)


def while_dirty(actors: RunActors, act: Callable[[], object]) -> None:
    """Has `act` called once, in the middle of the next transfer: the engines have no weights any more."""
    get = actors._calls.get
    acts = [act]

    def acting(references: list[Any], what: str, *arguments: Any, **named: Any) -> list[Any]:
        values = get(references, what, *arguments, **named)
        if what == "the rollout engines to prepare for new weights" and acts:
            acts.pop()()
        return values

    actors._calls.get = acting  # type: ignore[method-assign]


def actors_of(spec: RunSpec, folder: Path, term: int) -> RunActors:
    return RunActors(spec, folder, term, 0, BytesMeter())


def begin(actors: RunActors) -> None:
    """Completes iteration 0 if necessary: the actors are warmed up and the engines hold its weights."""
    actors.start()
    standing = actors.load(actors.materialise())
    if standing.trainer_version < 0:
        actors.sft()
    actors.sync(0)


DRIVER = """
import sys, time
from pathlib import Path
from tests.cluster.run_actors import *
from yatt_core.cluster.connect import connect_ray
address, namespace, ray_folder, folder, moment, *overrides = sys.argv[1:]
connect_ray(address, namespace, Path(ray_folder))
spec, folder = actors_spec(*overrides), Path(folder)

def reached(name):
    if name == moment:
        print(name, flush=True)
        time.sleep(600)

with DriverBeat(1):
    actors = actors_of(spec, folder, 1)
    actors.start()
    reached("start")
    inputs = actors.materialise()
    actors.load(inputs)
    reached("load")
    actors.sft()
    reached("sft")
    while_dirty(actors, lambda: reached("dirty"))
    actors.sync(0)
    receipts = []
    for receipt in actors.begin_collecting(shard_tasks(spec, 1)).receipts():
        receipts.append(receipt)
        reached("collect")
    prepared = actors.prepare(batch_of(receipts, 1, phase="prepare"))
    actors.learn(batch_of(receipts, 1), prepared)
    actors.begin_checkpoint(RUN, "head")
    reached("learn")
"""


def driver_killed_at(moment: str, head: Head, namespace: str, folder: Path, *overrides: str) -> None:
    """Runs a driver of term 1 until it reports that it has reached `moment`, and kills it."""
    with driver_stopped_at(moment, head, namespace, folder, *overrides):
        pass


@contextmanager
def driver_stopped_at(
    moment: str, head: Head, namespace: str, folder: Path, *overrides: str
) -> Iterator[subprocess.Popen[str]]:
    """Runs a driver of term 1 until it reports that it has reached `moment`, and stops it; kills it in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, head.address, namespace, str(head.run_folder), str(folder), moment, *overrides],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    try:
        assert said == f"{moment}\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


__all__ = [
    "RUN",
    "DriverBeat",
    "actors_of",
    "actors_spec",
    "batch_of",
    "begin",
    "driver_killed_at",
    "driver_stopped_at",
    "shard_tasks",
    "while_dirty",
]


def pids() -> dict[str, int]:
    """Returns the process id of each living actor of the namespace, by its registered name."""
    handles = {}
    for name in ray.util.list_named_actors():
        with suppress(ValueError):  # it ended after it was listed
            handles[name] = ray.get_actor(name)
    return {name: ray._private.state.actors(handle._actor_id.hex())["Pid"] for name, handle in handles.items()}


def pid_of(name: str) -> int:
    """Returns the process id of the actor whose registered name starts with `name`."""
    return next(pid for registered, pid in pids().items() if registered.startswith(name))
