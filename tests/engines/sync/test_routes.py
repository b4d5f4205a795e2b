"""By which way weights reach which engine, and transfers through the memory of a GPU that several processes share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions

from tests.engines.rollout.cases import build_model
from tests.engines.sync.members import CPU, Members
from tests.engines.sync.test_transfers import engines_of, few_numbers, held, sharded, wanted
from yatt_core.engines import device_memory
from yatt_core.engines.sync.group import SyncGroup
from yatt_core.engines.sync.routes import GLOO, NCCL, Route, plan_routes
from yatt_core.engines.train.ranks.collective import NO_GPU
from yatt_core.errors import InfrastructureError

ROUTES = {
    "a GPU each": (["a", "b", "c", "d"], [Route((), (2, 3), NCCL), Route((), (2, 3), NCCL)]),
    "engines beside the ranks": (["a", "b", "a", "b"], [Route((2,), (3,), NCCL), Route((3,), (2,), NCCL)]),
    "one GPU": (["a", "a", "a", "a"], [Route((2, 3), (), NCCL), Route((2, 3), (), NCCL)]),
    "two engines on one GPU": (["a", "b", "c", "c"], [Route((), (2, 3), GLOO), Route((), (2, 3), GLOO)]),
    "one group lacks a GPU": (["a", "b", "a", "a"], [Route((), (2, 3), GLOO), Route((), (2, 3), GLOO)]),
    "a core": (["a", NO_GPU, "a", "b"], [Route((), (2, 3), GLOO), Route((), (2, 3), GLOO)]),
    "cores": ([NO_GPU] * 4, [Route((), (2, 3), GLOO), Route((), (2, 3), GLOO)]),
}


@pytest.mark.parametrize(("gpus", "routes"), ROUTES.values(), ids=ROUTES)
def test_engines_on_a_ranks_own_gpu_share_its_memory(gpus: list[str], routes: list[Route]) -> None:
    assert list(plan_routes(gpus, 2)) == routes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_model(made := tmp_path_factory.mktemp("model"), "tied")
    return made


@pytest.fixture
def loans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Lets the members, which are threads, lend each other memory of this process; yields what was lent."""
    made: list[torch.Tensor] = []

    def lent(buffer: torch.Tensor) -> bytes:
        made.append(buffer)
        return str(len(made) - 1).encode()

    monkeypatch.setattr(device_memory, "lent", lent)
    monkeypatch.setattr(device_memory, "borrowed", lambda description, device: made[int(description)])
    monkeypatch.setattr(SyncGroup, "_nccl", SyncGroup._gloo)
    yield made


ONE = {"trainer-0": "a", "trainer-1": "a", "rollout-0": "a", "rollout-1": "a"}
BESIDE = {"trainer-0": "a", "trainer-1": "b", "rollout-0": "a", "rollout-1": "b"}


@pytest.mark.parametrize("gpus", [ONE, BESIDE], ids=["one GPU", "two GPUs"])
@pytest.mark.parametrize("delta", [False, True])
def test_borrowed_memory_has_the_bits_that_were_sent(
    folder: Path, loans: list[torch.Tensor], gpus: dict[str, str], delta: bool
) -> None:
    engines = engines_of(folder, 2, "bfloat16" if delta else "float32")
    dtype = torch.bfloat16 if delta else torch.float32
    members = Members(2, engines, gpus=gpus)
    parts = sharded(folder, 1, 2)
    for version in (1, 2):
        found = [each.result() for each in members.transfer(version, parts, str(dtype)[6:], delta)]
        assert found[0] == found[1] and [engine.version for engine in engines] == [version] * 2
        if version == 1:
            assert [held(engine) for engine in engines] == [wanted(folder, 1, dtype)] * 2
            for rank in parts:
                for part in rank:
                    few_numbers(part.values)
    (fresh,) = engines_of(folder, 1, str(dtype)[6:])
    for each in Members(2, [fresh]).transfer(2, parts, str(dtype)[6:]):
        each.result()
    assert [held(engine) for engine in engines] == [held(fresh)] * 2
    assert loans, "memory was lent"
    groups = {name: len(group._groups) for name, group in members.groups.items()}
    assert groups == dict.fromkeys(members.groups, 0 if gpus is ONE else 1) | (
        {} if gpus is ONE else {"rollout-0": 1, "rollout-1": 1}
    )


def test_a_borrower_that_fails_frees_its_lenders(folder: Path, loans: list[torch.Tensor]) -> None:
    engines = engines_of(folder, 2)

    def damage(name: str, bucket: int) -> None:
        if (name, bucket) == ("rollout-1", 2):
            raise InfrastructureError("bucket 2 does not match its digest")

    members = Members(2, engines, gpus=ONE, on_bucket=damage)
    failures = [each.exception() for each in members.transfer(1, sharded(folder, 1, 2))]
    assert all(isinstance(each, InfrastructureError) for each in failures), failures
    assert "digest" in str(failures[1]) and engines[1].version == -1


def test_torch_finds_the_memory_that_a_description_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, only that each of torch's facts arrives in its place."""
    names = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    facts = {name: name for name in names} | {
        "storage_handle": b"\x01handle", "ref_counter_handle": b"\x02counter", "event_handle": b"\x03event",
        "storage_size_bytes": 640, "storage_offset_bytes": 512, "ref_counter_offset": 3, "event_sync_required": True,
    }  # fmt: skip
    monkeypatch.setattr(reductions, "reduce_tensor", lambda tensor: (None, tuple(facts.values())))
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", lambda *given: dict(zip(names, given, strict=True)))
    described = device_memory.lent(torch.zeros(640, dtype=torch.uint8)[64:576])
    assert json.loads(described)
    found: Any = device_memory.borrowed(described, CPU)
    kept = [name for name in names if name.startswith(("storage_h", "storage_s", "storage_o", "ref", "event"))]
    assert {name: found[name] for name in kept} == {name: facts[name] for name in kept} and len(kept) == 7
    assert (found["tensor_size"], found["tensor_stride"], found["tensor_offset"]) == ((512,), (1,), 64)
    assert (found["dtype"], found["storage_device"], found["requires_grad"]) == (torch.uint8, 0, False)
