"""A rank that waits for another one, in whatever group, is told from one that hangs, which is named."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from tests.control_store import FolderStore
from tests.engines.train.groups import RANKS, Job, Work, broadcast, work_of
from tests.engines.train.layouts import CLIP, spec_of
from tests.engines.train.support import make_model_folder
from tests.needs import NEEDS_MEGATRON
from tests.waiting import wait_until
from yatt_core.actors.presence import Presence
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import close_process_group, open_process_group
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.engines.train.ranks.waiting import current_waits, waiting_for_actors
from yatt_core.protocols.engines import RankContext
from yatt_core.run_actors.watchdog import describe, find_stuck, gather_stacks, missing_actors

FOR_EVER = 1e9
PATIENCE = 150.0
NAMES = ["trainer-0", "trainer-1"]


def meet(rank: int, folder: Path, connect: Callable[[str], None]) -> None:
    connect(broadcast(folder / "address", hold_address() if rank == 0 else None))


def wait_for(file: Path) -> None:
    """Hangs, as far as the watchdog can tell, until the test writes a file."""
    while not file.exists():
        time.sleep(0.02)


def run_operations(rank: int, folder: Path) -> None:
    """Goes through operations of several groups, of which rank 1 begins none before it is told to."""
    from torch.distributed._functional_collectives import all_reduce

    presence = Presence(NAMES[rank], 1, FOR_EVER, FolderStore(folder))
    group = Collective()
    meet(rank, folder, lambda address: group.connect(rank, 2, address))
    open_process_group(group)
    pair = distributed.new_group([0, 1], group_desc="pair")
    tensor = torch.ones(1)
    for name, operation in (
        ("own", lambda: group.sum(tensor)),
        ("all", lambda: distributed.all_reduce(tensor)),
        ("pair", lambda: float(all_reduce(tensor, "sum", pair))),  # in torch's native code, as FSDP2's own
    ):
        with presence.serving("learn", 1):
            if rank:
                wait_for(folder / name)
            operation()
        group.barrier()
    close_process_group()


def test_a_rank_that_waits_in_any_group_is_told_from_one_that_hangs(tmp_path: Path) -> None:
    ranks = [RANKS.Process(target=run_operations, args=(rank, tmp_path)) for rank in range(2)]
    for each in ranks:
        each.start()
    for name, operation in (("own", "sum"), ("all", "all_reduce 1 of default_pg"), ("pair", "all_reduce 1 of pair")):
        stuck, line = blamed(tmp_path, operation)
        assert stuck == ["trainer-1"]
        assert "wait_for" in line
        assert "trainer-0 in " in line
        (tmp_path / name).touch()
    for each in ranks:
        each.join(PATIENCE)
    assert [each.exitcode for each in ranks] == [0, 0]


def blamed(folder: Path, operation: str) -> tuple[list[str], str]:
    """Returns the stuck ranks, and the line about the first, once a rank waits in an operation."""
    found: dict[str, Any] = {}

    def waits() -> bool:
        found.clear()
        found.update(gather_stacks(FolderStore(folder), folder, NAMES, timeout=30.0))
        return any(operation in report.operation for report in found.values())

    wait_until(waits, PATIENCE)
    stuck = find_stuck(NAMES, found, NAMES)
    return stuck, describe(stuck[0], found[stuck[0]], missing_actors(found).get(stuck[0], ()))


def learn_late(rank: int, late: int, work: Work, folder: Path) -> None:
    """Learns one iteration; one of two ranks begins late."""
    torch.set_num_threads(1)
    presence = Presence(NAMES[rank], 1, FOR_EVER, FolderStore(folder))
    engine = build_train_engine(work.job.spec, RankContext(work.place, work.place / "inputs", str(work.job.model), 0))
    meet(rank, folder, partial(engine.connect, rank, 2))
    engine.initialise()
    task = work.tasks[0]
    prepared = broadcast(folder / "prepared", engine.prepare(task))
    with presence.serving("learn", 1):
        if rank == late:
            wait_for(folder / "go")
        receipt = engine.learn(task, prepared)
    (folder / f"receipt-{rank}").write_bytes(pickle.dumps(receipt.fingerprint))
    close_process_group()


SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size")
ENGINES = [
    pytest.param({"kind": "fsdp2", "ranks": 2}, id="fsdp2"),
    *(
        pytest.param({"kind": "megatron", **dict(zip(SIZES, sizes, strict=True))}, id=name, marks=NEEDS_MEGATRON)
        for name, sizes in (("tensor", (2, 1, 1)), ("pipeline", (1, 2, 1)), ("data", (1, 1, 2)))
    ),
]


@pytest.mark.verify
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_libraries_waits_are_known(engine: dict[str, Any], late: int, tmp_path: Path) -> None:
    spec = spec_of({**engine, "dtype": "float32", "micro_batch_tokens": 60}, CLIP)
    (work,) = work_of([Job(spec, make_model_folder(tmp_path / "model"), (1,))], tmp_path)
    ranks = [RANKS.Process(target=learn_late, args=(rank, late, work, tmp_path)) for rank in range(2)]
    for each in ranks:
        each.start()
    wait_until((tmp_path / "prepared").exists, PATIENCE)
    stuck, line = blamed(tmp_path, " ")
    assert stuck == [NAMES[late]]
    assert f"{NAMES[1 - late]} in " in line
    (tmp_path / "go").touch()
    for each in ranks:
        each.join(PATIENCE)
    assert [each.exitcode for each in ranks] == [0, 0]
    assert (tmp_path / "receipt-0").read_bytes() == (tmp_path / "receipt-1").read_bytes()


class EndsAnother(str):
    """An operation that ends, while it is compared, another one, as another thread may at any moment."""

    another: AbstractContextManager[None]

    def __eq__(self, other: object) -> bool:
        self.another.__exit__(None, None, None)
        return False

    __hash__ = str.__hash__


def test_an_operation_may_end_while_another_thread_ends_its_own():
    operation = EndsAnother("bucket 1")
    first = waiting_for_actors(operation, NAMES[:1])
    operation.another = first
    second = waiting_for_actors("bucket 2", NAMES[1:])
    first.__enter__()
    second.__enter__()
    second.__exit__(None, None, None)
    assert [wait.operation.upper() for wait in current_waits()] == ["BUCKET 1"]
    first.__exit__(None, None, None)
    assert not current_waits()
