"""The trainers' own groups: unreachable from outside the machine, time limits by bytes, the choice of the backend."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from yatt_core.engines.train.ranks import collective, time_limits
from yatt_core.engines.train.ranks.collective import (
    NO_GPU,
    PREFIX_STORE,
    Collective,
    ReplicaCollective,
    backend_of,
    gpu_name,
)
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.errors import InfrastructureError

SECOND_RANK = """
import sys
from yatt_core.engines.train.ranks.collective import Collective
Collective().connect(1, 2, sys.argv[1])
"""


def test_the_rendezvous_listens_on_loopback_only() -> None:
    address = hold_address()
    with subprocess.Popen([sys.executable, "-c", SECOND_RANK, address]) as second:
        group = Collective()
        group.connect(0, 2, address)
        assert second.wait(timeout=60) == 0
    listeners = [c for c in psutil.Process(os.getpid()).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert f":{address.rpartition(':')[2]}" in {f":{listener.laddr.port}" for listener in listeners}
    assert {listener.laddr.ip for listener in listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def on_two_ranks(work: Callable[[Collective], Any], **options: Any) -> list[Any]:
    """Returns what each of two ranks finds, in a thread each; an error instead of a result is returned too."""
    address = hold_address()

    def run(rank: int) -> Any:
        group = Collective()
        group.connect(rank, 2, address, **options)
        try:
            return work(group)
        except InfrastructureError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def test_rank_0_collects_the_bytes_of_the_rank_that_speaks_for_each_part() -> None:
    # Two stages of one replica: what the other stage has may be of another length, or nothing.
    def collected(group: Collective) -> list[list[bytes]]:
        replica = ReplicaCollective(group, 0, 1, speaks=group.rank == 1)
        return [replica.collected(data[group.rank]) for data in ((b"longer", b"said"), (b"", b"said"), (b"none", b""))]

    assert on_two_ranks(collected) == [[[b"said"], [b"said"], [b""]], [[], [], []]]


def test_replicas_are_collected_in_their_order_and_not_in_that_of_the_ranks() -> None:
    def collected(group: Collective) -> list[bytes]:
        replica = ReplicaCollective(group, 1 - group.rank, 2, speaks=True)
        return replica.collected(b"rank %d" % group.rank)

    assert on_two_ranks(collected) == [[b"rank 1", b"rank 0"], []]
    assert on_two_ranks(lambda group: group.collected(b"rank %d" % group.rank)) == [[b"rank 0", b"rank 1"], []]


def test_every_rank_has_the_bytes_of_all() -> None:
    assert on_two_ranks(lambda group: group.gathered(b"long" * group.rank)) == [[b"", b"long"]] * 2
    replicas = on_two_ranks(lambda group: ReplicaCollective(group, 0, 1, speaks=False).gathered(b"%d" % group.rank))
    assert replicas == [[b"0", b"1"]] * 2


@pytest.mark.parametrize("sizes", [(0, 0), (7, 0), (8, 8), (9, 30)])
def test_many_bytes_are_gathered_in_pieces_of_bounded_memory(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 16
    real = Collective._all_gathered
    pieces = list[int]()
    monkeypatch.setattr(collective, "GATHERED_AT_ONCE", limit)

    def recorded(group: Collective, own: torch.Tensor) -> torch.Tensor:
        received = real(group, own)
        pieces.append(received.nbytes)
        return received

    monkeypatch.setattr(Collective, "_all_gathered", recorded)
    contents = [bytes(range(size)) for size in sizes]
    assert on_two_ranks(lambda group: group.gathered(contents[group.rank])) == [contents] * 2
    assert max(pieces) <= limit


def test_each_rank_gets_what_is_meant_for_it_and_nothing_else() -> None:
    def exchanged(group: Collective) -> list[list[bytes]]:
        outgoing = [b"%d to %d" % (group.rank, other) for other in range(2)]
        return [group.exchanged(outgoing), group.exchanged([b"", b""]), group.exchanged([b"", b"x" * group.rank])]

    assert on_two_ranks(exchanged) == [
        [[b"0 to 0", b"1 to 0"], [b"", b""], [b"", b""]],
        [[b"0 to 1", b"1 to 1"], [b"", b""], [b"", b"x"]],
    ]


@pytest.mark.parametrize(
    ("moved", "held", "seconds"),
    [(0, 0, 900.0), (50_000_000, 0, 901.0), (0, 50_000_000, 901.0), (4 * 72 * 10**9, 12 * 72 * 10**9, 23_940.0)],
)
def test_a_time_limit_follows_the_bytes(moved: int, held: int, seconds: float) -> None:
    assert time_limits.time_limit(moved, held).total_seconds() == seconds


def test_the_state_of_a_model_follows_its_files(tmp_path: Path) -> None:
    assert time_limits.state_bytes(tmp_path) == 0
    (tmp_path / "model-1.safetensors").write_bytes(bytes(10))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(5))
    (tmp_path / "config.json").write_bytes(bytes(3))
    assert time_limits.state_bytes(tmp_path) == 90


def test_a_sum_waits_longer_for_more_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # 7.5 s for the large tensor, 1.5 s for the small one, which would be too short for it.
    monkeypatch.setattr(time_limits, "BASE_SECONDS", 0.5)
    monkeypatch.setattr(time_limits, "BYTES_PER_SECOND", 1e5)
    ended = threading.Event()

    def late(group: Collective) -> float:
        if group.rank:
            time.sleep(2.0)
        found = float(group.sum(torch.ones(75_000))[0])
        if group.rank:
            assert ended.wait(60)
        else:
            try:
                group.sum(torch.ones(1))
            finally:
                ended.set()
        return found

    first, second = on_two_ranks(late, held=100_000)
    assert isinstance(first, InfrastructureError)
    assert "rank 0 of 2 lost its group" in str(first)
    assert second == 2.0


def test_nccl_sums_on_gpus_unless_ranks_share_one_or_lack_one() -> None:
    assert backend_of(["a", "b"]) == "nccl"
    assert backend_of(["a", "a"]) == backend_of(["a", NO_GPU]) == backend_of([NO_GPU, NO_GPU]) == "gloo"
    assert gpu_name(torch.device("cpu")) == NO_GPU


def test_tensors_on_the_gpus_take_the_group_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo stands in for NCCL, and this machine's memory for the GPUs'."""
    made = []

    def stand_in(group: Collective, store: Any) -> Any:
        made.append(group.rank)
        return group._gloo(PREFIX_STORE("nccl", store))

    monkeypatch.setattr(collective, "gpu_name", lambda _: threading.current_thread().name)
    monkeypatch.setattr(Collective, "_nccl", stand_in)
    sums = on_two_ranks(lambda group: group.sum(torch.full((3,), group.rank + 1.0)).tolist())
    assert sums == [[3.0] * 3] * 2
    assert sorted(made) == [0, 1]
    monkeypatch.setattr(collective, "gpu_name", lambda _: "the same GPU")
    assert on_two_ranks(lambda group: float(group.sum(torch.ones(1)))) == [2.0, 2.0]
    assert sorted(made) == [0, 1]
