"""The checks of claims about GPUs find what does not hold: each is given what is right, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.exact.work import Loop, model_in, spec_of
from benchmarks.gpu import buckets, exactness, memory, repeats
from benchmarks.gpu.buckets import Borrowed
from benchmarks.gpu.claims import Place
from benchmarks.gpu.courses import Course
from benchmarks.gpu.engines import TOLERANCE, _compared
from benchmarks.gpu.sync import _arrived, _fewer
from benchmarks.gpu.transfers import Taken
from yatt_core.engines import offload
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, UpdateReceipt
from yatt_core.wire.bit_sums import sums_on_device
from yatt_core.wire.parts import Box, Rectangle

HERE = Place(Path(), ("", ""), stand_in=True)
COURSE = Course((2.0, 1.0), {"a": np.ones(3, np.float32)})
PART = Rectangle("a", (3,), Box((0,), (3,)), "bfloat16")
TRAINER = Taken(way="memory", seconds=(1.0, 2.0), nbytes=100, digests={PART: "one"}, changed_bytes=4)


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (COURSE, True),
        (replace(COURSE, norms=(2.0, 1.0 + 0.9 * TOLERANCE)), True),
        (replace(COURSE, norms=(2.0, 1.0 + 2.0 * TOLERANCE)), False),
        (replace(COURSE, weights={"a": np.full(3, 1.0 + 2.0 * TOLERANCE, np.float32)}), False),
        (replace(COURSE, weights={"b": np.ones(3, np.float32)}), False),
    ],
)
def test_a_trainer_that_learns_something_else_is_found(found: Course, holds: bool) -> None:
    assert _compared(found, COURSE).holds == holds


@pytest.mark.parametrize(
    ("engine", "holds"),
    [
        (TRAINER, True),
        (replace(TRAINER, way="gloo"), False),
        (replace(TRAINER, digests={PART: "other"}), False),
        (replace(TRAINER, digests={}), False),
    ],
)
def test_weights_that_arrive_otherwise_are_found(engine: Taken, holds: bool) -> None:
    assert _arrived((TRAINER, engine), "memory", "rate").holds == holds
    assert _fewer((TRAINER, engine), "memory").holds == holds
    assert not _fewer((replace(TRAINER, changed_bytes=100), engine), "memory").holds, "as many bytes as all weights"
    assert _arrived((TRAINER, replace(engine, seconds=(0.5, 4.0))), "memory", "rate").figures == {
        "rate": 100 / 1.0 / 1e9
    }


def test_buckets_that_a_worker_takes_otherwise_are_found() -> None:
    sent = tuple("abcdef")
    right = Borrowed(sent, sent, 2.0)
    assert buckets.judged(right, 100).holds and buckets.judged(right, 100).figures == {
        "worker_ipc_gb_s": 500 / 2.0 / 1e9
    }
    assert not buckets.judged(replace(right, taken=tuple("abcdeg")), 100).holds
    assert not buckets.judged(Borrowed(sent[:5], sent[:5], 2.0), 100).holds, "one is missing"


def test_digests_that_differ_or_reveal_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buckets.digests_agree(HERE).holds
    sums = sums_on_device
    for wrong in (lambda data: sums(data)[1:], lambda data: [1]):
        monkeypatch.setattr(buckets, "sums_on_device", wrong)
        assert not buckets.digests_agree(HERE).holds
    monkeypatch.setattr(buckets, "block_sums", lambda data: [1])
    assert "3 of 3" in buckets.digests_agree(HERE).said


def test_processes_that_compute_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for digests, holds in ((("a", "a"), True), (("a", "b"), False)):
        monkeypatch.setattr(repeats, "_bits", lambda *_, found=digests: found)
        assert repeats.rollout_repeats(HERE, "float32").holds == holds
        assert repeats.trainer_repeats(HERE, "float32", "torch").holds == holds


def refused() -> torch.Tensor:
    raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")


def test_a_sampler_has_its_own_kernels_beside_an_exact_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU some have no kernel that adds in the same order; in a run the two are in processes of their own."""
    torch.set_num_threads(1)
    loop = Loop(spec_of("float32"), tmp_path / "loop", model_in(tmp_path))
    asked = list[bool]()
    generate = loop.sampler.generate
    learn = loop.trainer.learn

    def generated(request: GenerateRequest) -> GenerateResult:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return generate(request)

    def learnt(task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return learn(task, prepared)

    monkeypatch.setattr(loop.sampler, "generate", generated)
    monkeypatch.setattr(loop.trainer, "learn", learnt)
    torch.use_deterministic_algorithms(True)
    try:
        loop.take()
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True]


def test_sums_that_do_not_repeat_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exactness.sums_repeat(HERE).holds
    number: Iterator[int] = count()
    varying = {"a": lambda: torch.ones(1), "b": lambda: torch.tensor(float(next(number)))}
    monkeypatch.setattr(exactness, "_operations", lambda *_: varying | {"c": refused})
    found = exactness.sums_repeat(HERE)
    assert not found.holds and found.said.endswith("these differ: b, c (refused)")


def test_weights_that_stay_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "is_on_device", offload.is_on_device)  # undoes what a stand-in puts in its place
    torch.set_num_threads(1)
    place = replace(HERE, folder=tmp_path)
    assert memory.rollout_leaves(place).holds
    monkeypatch.setattr(TorchRolloutEngine, "sleep", lambda _: None)
    assert not memory.rollout_leaves(place).holds
