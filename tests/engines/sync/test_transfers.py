"""Weights go straight from the ranks that hold them to the engines, resharded on the way, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, build_model, weights_of
from tests.engines.sync.members import Members
from yatt_core.engines.rectangles import part_digests
from yatt_core.engines.rollout.incoming import WeightTaker
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.sync import receiving
from yatt_core.engines.sync.group import SyncGroup
from yatt_core.engines.train.ranks.waiting import current_waits
from yatt_core.errors import FencedError, InfrastructureError
from yatt_core.protocols.transfers import HeldWeights
from yatt_core.run_actors.weight_check import WeightComparison, compare_weights
from yatt_core.wire.buckets import WeightBucket
from yatt_core.wire.parts import Rectangle, TensorPart, contributed

Part = TensorPart[torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_model(made := tmp_path_factory.mktemp("model"), "tied")
    return made


def engines_of(folder: Path, count: int, dtype: str = "float32") -> list[TorchRolloutEngine]:
    return [TorchRolloutEngine(str(folder), dtype, MAX_PROMPT, MAX_NEW, folder) for _ in range(count)]


def sharded(folder: Path, version: int, ranks: int) -> list[list[Part]]:
    """Divides weights: matrices by rows, as FSDP2 does, or by columns; vectors are held by all ranks."""
    found: list[list[Part]] = [[] for _ in range(ranks)]
    for name, array in weights_of(folder, version).items():
        tensor = torch.from_numpy(array.copy())
        dimension = 1 if "o_proj" in name or "down_proj" in name else 0
        for rank in range(ranks):
            if tensor.dim() == 1:
                found[rank].append(TensorPart(name, tuple(tensor.shape), (0,), tensor, tuple(range(ranks))))
                continue
            values = tensor.chunk(ranks, dimension)
            start = sum(each.shape[dimension] for each in values[:rank])
            offsets = (start, 0) if dimension == 0 else (0, start)
            found[rank].append(TensorPart(name, tuple(tensor.shape), offsets, values[rank], (rank,)))
    return [list(contributed(parts, rank)) for rank, parts in enumerate(found)]


def held(engine: TorchRolloutEngine) -> dict[str, bytes]:
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in engine._tensors.items()}


def wanted(folder: Path, version: int, dtype: torch.dtype) -> dict[str, bytes]:
    return {
        name: torch.from_numpy(np.array(array)).to(dtype).view(torch.uint8).numpy().tobytes()
        for name, array in weights_of(folder, version).items()
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engines_get_the_bits_that_they_would_have_rounded_themselves(folder: Path, dtype: str) -> None:
    """Twice over the same connections. Nothing is sent twice, and buckets are no larger than allowed."""
    engines = engines_of(folder, 2, dtype)
    members = Members(3, engines)
    whole = wanted(folder, 1, getattr(torch, dtype))
    for version in (1, 2):
        found = [each.result() for each in members.transfer(version, sharded(folder, version, 3), dtype)]
        numbers = sum(len(data) for data in whole.values())
        assert found[0] == found[1] == sum(found[2:]) and numbers <= found[0] < 1.2 * numbers
        for engine in engines:
            assert engine.version == version and held(engine) == wanted(folder, version, getattr(torch, dtype))
    assert not any(sizes == 0 for sizes in found), "every rank sends"


@pytest.mark.parametrize("arrives", ["on the host", "on a device"])
def test_buckets_stay_where_they_arrive(folder: Path, monkeypatch: pytest.MonkeyPatch, arrives: str) -> None:
    """On the host that is memory of the engine, if it has some. Other host memory stands for a device's."""
    arrays = list[np.ndarray]()
    made = list[torch.Tensor]()
    buffer = SyncGroup.buffer

    def buffers(_: WeightTaker, count: int, nbytes: int) -> Sequence[np.ndarray]:
        arrays.extend(np.empty(nbytes, np.uint8) for _ in range(count))
        return arrays

    def watched(group: SyncGroup, nbytes: int) -> torch.Tensor:
        found = buffer(group, nbytes)
        if group.own == "rollout-0":
            made.append(found)
        return found

    def take(engine: WeightTaker, bucket: WeightBucket) -> None:
        assert isinstance(bucket.data, torch.Tensor)
        places = [each.data_ptr() for each in made] or [each.ctypes.data for each in arrays]
        assert bucket.data.data_ptr() == places[bucket.number % 2]
        WeightTaker.take(engine, bucket)

    monkeypatch.setattr(TorchRolloutEngine, "buffers", buffers)
    monkeypatch.setattr(TorchRolloutEngine, "take", take)
    monkeypatch.setattr(SyncGroup, "buffer", watched)
    if arrives == "on a device":
        monkeypatch.setattr(receiving, "HOST", torch.device("meta"))
    (engine,) = engines_of(folder, 1)
    for each in Members(2, [engine]).transfer(1, sharded(folder, 1, 2)):
        each.result()
    assert held(engine) == wanted(folder, 1, torch.float32)
    assert (len(arrays), len(made)) == ((2, 0) if arrives == "on the host" else (0, 2))


def test_a_rank_sends_changes_only_if_it_knows_what_the_engines_hold(folder: Path) -> None:
    """Not without a copy of the base, with one of another transfer, or after a transfer that has failed."""
    members = Members(1, engines_of(folder, 1))
    (parts,) = sharded(folder, 1, 1)
    for each in members.transfer(1, [parts], delta=True):
        each.result()
    unknown = "trainer-0 does not know the weights of transfer"
    for base, keeps in (("transfer 1", False), ("transfer 0", True)):
        with pytest.raises(InfrastructureError, match=f"{unknown} {base}"):
            members.send(members.task(2, base), 0, parts, None, keeps)

    def refuse() -> None:
        raise FencedError("the driver has been replaced")

    members.check = refuse
    members.groups.clear()
    with pytest.raises(FencedError):  # while it waits for the engine
        members.send(members.task(2, "transfer 1"), 0, parts, None, True)
    with pytest.raises(InfrastructureError, match=f"{unknown} transfer 1"):
        members.send(members.task(2, "transfer 1"), 0, parts, None, True)


def test_a_bit_that_is_lost_on_the_way_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bucket has arrived, before anything of it is used."""
    (engine,) = engines_of(folder, 1)
    members = Members(2, [engine])
    buffer = SyncGroup.buffer
    buffers = list[torch.Tensor]()

    def watched(group: SyncGroup, nbytes: int) -> torch.Tensor:
        made = buffer(group, nbytes)
        if group.own == "rollout-0":
            buffers.append(made)
        return made

    def damage(name: str, number: int) -> None:
        if number == 1:
            buffers[1][17] ^= 1

    monkeypatch.setattr(SyncGroup, "buffer", watched)
    members.on_bucket = damage
    failure = members.transfer(1, sharded(folder, 1, 2))[0].exception()
    assert isinstance(failure, InfrastructureError) and "bucket 1 of" in str(failure) and engine.version == -1


def test_a_damaged_bucket_leaves_its_engine_dirty_and_all_members_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other members notice that one has given up; a new group syncs all engines again."""
    engines = engines_of(folder, 2)
    members = Members(2, engines)
    for each in members.transfer(1, sharded(folder, 1, 2)):
        each.result()
    finish = members.groups["rollout-1"].finish

    def damage(number: int, source: int) -> None:
        finish(number, source)
        if number == 2 * 3:
            raise InfrastructureError("bucket 3 does not match its digest")

    monkeypatch.setattr(members.groups["rollout-1"], "finish", damage)
    failures = [each.exception() for each in members.transfer(2, sharded(folder, 2, 2))]
    assert isinstance(failures[1], InfrastructureError) and "digest" in str(failures[1])
    assert all(isinstance(each, InfrastructureError) for each in failures), failures
    assert any("rollout-1" in str(each) for each in failures[2:]), "the ranks name whom they lost"
    assert [engine.version for engine in engines] == [-1, -1]
    for each in Members(2, engines).transfer(2, sharded(folder, 2, 2)):
        each.result()
    assert [held(engine) for engine in engines] == [wanted(folder, 2, torch.float32)] * 2


def test_a_rank_without_memory_for_buckets_goes_through_its_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks may be gathering tensors in step with it."""
    buffer = SyncGroup.buffer
    ends = list[int]()

    class Watched(list[Part]):
        def __iter__(self) -> Iterator[Part]:
            yield from super().__iter__()
            ends.append(len(self))

    def refused(group: SyncGroup, nbytes: int) -> torch.Tensor:
        if group.own == "trainer-1":
            raise MemoryError("no memory for a bucket")
        return buffer(group, nbytes)

    monkeypatch.setattr(SyncGroup, "buffer", refused)
    (engine,) = engines_of(folder, 1)
    first, second = sharded(folder, 1, 2)
    *_, failure = (each.exception() for each in Members(2, [engine]).transfer(1, [first, Watched(second)]))
    assert isinstance(failure, MemoryError)
    assert ends == [len(second)] * 2, "once for the plan, once for the buckets"


@pytest.mark.parametrize("error", [FencedError("replaced"), InfrastructureError("rollout-1 has ended")])
def test_a_member_that_waits_in_vain_gives_up_and_says_for_whom_it_waits(folder: Path, error: Exception) -> None:
    """For example because the driver died before it called the other one; the engine keeps its weights."""
    (engine,) = engines_of(folder, 1)
    awaited: list[tuple[str, ...]] = []

    def check() -> None:
        awaited.extend(wait.actors for wait in current_waits())
        raise error

    members = Members(2, [engine], check=check)
    engine.update_weights(weights_of(folder, 0), 0)
    task = members.task(1)
    parts = sharded(folder, 1, 2)
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(members.receive, task, "rollout-0"),
            threads.submit(members.send, task, 0, parts[0], None),
        ]
        for each in calls:
            assert isinstance(each.exception(), type(error)), each.exception()
    assert ("trainer-1",) in awaited
    assert engine.version == 0


def test_ranks_that_contradict_each_other_are_refused(folder: Path) -> None:
    (engine,) = engines_of(folder, 1)
    first, second = sharded(folder, 1, 2)
    failures: Sequence[BaseException | None] = [
        each.exception() for each in Members(2, [engine]).transfer(1, [first, second[::-1]])
    ]
    assert all(isinstance(each, InfrastructureError) for each in failures)
    assert any("order" in str(each) for each in failures), "the others may only see that it has left"
    doubled = Members(2, [engine]).transfer(1, [first, [*second[:-1], first[0]]])
    assert isinstance(doubled[0].exception(), InfrastructureError)
    assert engine.version == -1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_an_engine_computes_with_is_compared_with_what_the_ranks_hold(folder: Path, dtype: str) -> None:
    """By digests of rectangles, so that nobody gathers or sends a tensor; one flipped bit is found and named."""
    (engine,) = engines_of(folder, 1, dtype)
    parts = sharded(folder, 1, 2)
    for each in Members(2, [engine]).transfer(1, parts, dtype):
        each.result()

    def compared() -> WeightComparison:
        answers = iter([[HeldWeights(1, part_digests(each, dtype)) for each in parts], None])

        def ask(references: list[Any], what: str, names: list[str]) -> list[HeldWeights]:
            return next(answers) or [Answer(engine).held_weights(references[0])]

        ranks = {f"trainer-{number}": Remote(lambda *_: None) for number in range(len(parts))}
        engines = {"rollout-0": Remote(lambda term, rectangles: rectangles)}
        return compare_weights(ask, 1, ranks, engines)

    found = compared()
    assert found.settled and not found.differing and found.engines[0].compared == sum(map(len, parts))
    name = "model.layers.1.self_attn.o_proj.weight"
    engine._tensors[name].view(torch.uint8)[-1, -1] ^= 1
    assert [each.differing for each in compared().differing] == [(name,)]
    engine.begin_update(2)
    assert not compared().settled


class Remote:
    """Has the calls of an actor's handle, which return what the actor is asked with."""

    def __init__(self, answer: Any) -> None:
        self.held_weights = self
        self.remote = answer


class Answer:
    """An actor of one engine."""

    def __init__(self, engine: TorchRolloutEngine) -> None:
        self._engine = engine

    def held_weights(self, rectangles: Sequence[Rectangle]) -> HeldWeights:
        if self._engine.version < 0:
            return HeldWeights(-1, None)
        digests = self._engine.rectangle_digests(rectangles)
        return HeldWeights(self._engine.version, dict(zip(rectangles, digests, strict=True)))


def test_only_changes_are_sent_to_engines_that_hold_the_base(folder: Path) -> None:
    """The same bits as a whole transfer, whatever has changed: few numbers, all, none, NaN and the sign of zero."""
    engines = engines_of(folder, 2, "bfloat16")
    members = Members(2, engines)
    parts = sharded(folder, 0, 2)
    for each in members.transfer(1, parts, "bfloat16", delta=True):
        each.result()
    sizes = []
    for version, change in enumerate(CHANGES, start=2):
        for rank in parts:
            for part in rank:
                change(part.values)
        found = [each.result() for each in members.transfer(version, parts, "bfloat16", delta=True)]
        assert found[0] == found[1] <= sum(found[2:])
        sizes.append(found[0])
        (fresh,) = engines_of(folder, 1, "bfloat16")
        for each in Members(2, [fresh]).transfer(version, parts, "bfloat16"):
            each.result()
        assert [held(engine) for engine in engines] == [held(fresh)] * 2 and engines[0].version == version
    few, all_numbers, none, odd = sizes
    whole = sum(tensor.nbytes for tensor in engines[0]._tensors.values())
    assert none == 0 < few < whole / 4 and 0.95 * whole < all_numbers < 1.2 * whole and odd < whole / 4


def few_numbers(values: torch.Tensor) -> None:
    values[..., ::50] += 1.0


def odd_numbers(values: torch.Tensor) -> None:
    if values.dim() > 1:
        values[0, 0] = torch.nan
        values[-1, -1] = -0.0


CHANGES = (few_numbers, lambda values: values.mul_(1.5), lambda values: None, odd_numbers)
