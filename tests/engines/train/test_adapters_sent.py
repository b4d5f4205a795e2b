"""Low-rank adapters go straight from the ranks to engines that merge them; merged weights are gathered by all ranks in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import torch

from tests.engines.sync.members import Members
from tests.engines.train.support import make_engine, random_task, update
from tests.engines.train.test_adapters import lora_spec
from tests.needs import NEEDS_PEFT
from yatt_core.engines.adapters import share_of
from yatt_core.engines.rectangles import rectangle_of
from yatt_core.engines.rollout.incoming import WeightTaker
from yatt_core.engines.rollout.merging import MergingTaker
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.sync.sending import send_weights
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import InfrastructureError
from yatt_core.wire.parts import TensorPart

Parts = Callable[[bool], Iterator[TensorPart[torch.Tensor]]]
BUCKET = 4096


def sent(members: Members, parts: list[Parts]) -> list[Future[int]]:
    """Has all members take part; returns what became of the engines, then of the ranks."""
    task = members.task(1)

    def send(rank: int) -> int:
        group = members.group(task, f"trainer-{rank}")
        try:
            return send_weights(
                group=group,
                task=task,
                parts=parts[rank],
                rounded_to=None,
                most_bytes=BUCKET,
            )
        except BaseException:
            group.close()
            raise

    with ThreadPoolExecutor(len(members.takers) + members.ranks) as threads:
        found: list[Future[Any]] = [threads.submit(members.receive, task, name) for name in members.takers]
        return [*found, *(threads.submit(send, rank) for rank in range(members.ranks))]


@pytest.fixture
def rollout(model_folder: Path, tmp_path: Path) -> TorchRolloutEngine:
    return TorchRolloutEngine(str(model_folder), "float32", 16, 4, tmp_path)


def learnt(sync: str, folder: Path, model: Path) -> TorchTrainEngine:
    """Returns a trainer whose adapters have learnt from the same experience, whatever it sends."""
    engine = make_engine(lora_spec(sync=sync), folder, model)
    update(engine, random_task(folder, 1))
    return engine


@NEEDS_PEFT
@pytest.mark.parametrize("sync", ["adapter", "merged"])
def test_an_engine_gets_the_weights_that_the_trainer_would_save(
    tmp_path: Path, model_folder: Path, rollout: TorchRolloutEngine, sync: str
) -> None:
    engine = learnt(sync, tmp_path, model_folder)
    lora = engine.policy.spec.trainer.lora
    assert lora is not None
    wanted = {name: tensor.detach().clone() for name, tensor in engine.policy.weights()}
    taker: WeightTaker = rollout
    if sync == "adapter":
        taker = MergingTaker(rollout, model_folder, share_of(lora), BUCKET)
    received, given = (each.result() for each in sent(Members(1, [taker]), [engine.sync_parts]))
    assert received == given and rollout.version == 1
    assert (given < sum(tensor.nbytes for tensor in wanted.values()) / 2) == (sync == "adapter")
    assert sorted(rollout._tensors) == sorted(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(rollout._tensors[name], tensor), name


@NEEDS_PEFT
@pytest.mark.parametrize("sync", ["adapter", "merged"])
def test_parts_are_outlined_without_merging(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    engine = learnt(sync, tmp_path, model_folder)
    wanted = [rectangle_of(part, None) for part in engine.sync_parts()]

    def refuse() -> Any:
        raise AssertionError("the ranks have not met yet, so they must not gather")

    monkeypatch.setattr(engine.policy, "weights", refuse)
    assert [rectangle_of(part, None) for part in engine.sync_parts(outlines=True)] == wanted


class InStep:
    """Tensors that two ranks gather together, and rank 0 has.

    gathered: how many each rank has taken part in.
    """

    def __init__(self, count: int) -> None:
        self._tensors = [torch.full((1024,), float(number)) for number in range(count)]
        self._barrier = Barrier(2)
        self.gathered = [0, 0]

    def parts(self, rank: int, outlines: bool) -> Iterator[TensorPart[torch.Tensor]]:
        for number, tensor in enumerate(self._tensors):
            if not outlines:
                self._gather(rank, number)
            if rank == 0:
                yield TensorPart(f"{number}", (1024,), (0,), tensor, (0,))

    def _gather(self, rank: int, number: int) -> None:
        try:
            self._barrier.wait(20)
        except BrokenBarrierError as error:
            raise InfrastructureError(f"rank {rank} gathers tensor {number} alone") from error
        self.gathered[rank] += 1


class Taker(WeightTaker):
    """An engine that sums what it gets."""

    def __init__(self, most: int) -> None:
        self.sums = list[float]()
        self._most = most

    def _begin(self, version: int) -> None:
        self.sums = []

    def _put(self, piece: Any) -> None:
        if len(self.sums) == self._most:
            raise InfrastructureError("this engine takes no more")
        self.sums.append(float(piece.values.sum()))

    def _complete(self, version: int) -> None:
        """Has nothing to activate."""


@pytest.mark.parametrize("most", [8, 2])
def test_ranks_gather_in_step_to_the_end_even_if_the_transfer_fails(most: int) -> None:
    """An engine that fails in mid-transfer must not leave a rank alone in a gathering: it would be lost for learning, too."""
    tensors = InStep(8)
    taker = Taker(most)
    calls = sent(
        Members(2, [taker]),
        [partial(tensors.parts, rank) for rank in range(2)],
    )
    failures = [each.exception() for each in calls]
    assert tensors.gathered == [8, 8]
    if most == 8:
        assert failures == [None] * 3 and taker.sums == [1024.0 * number for number in range(8)]
    else:
        assert isinstance(failures[0], InfrastructureError) and isinstance(failures[1], InfrastructureError)
        assert not any("alone" in str(each) for each in failures), failures
