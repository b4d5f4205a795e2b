"""A served engine's copy of its weights takes changes, and hands on whole layers in which anything has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import build_model
from tests.engines.rollout.served.kept_by_engine import Served, served
from tests.engines.sync.members import Members
from tests.engines.sync.test_transfers import CHANGES, few_numbers, sharded
from yatt_core.engines.rollout.served.kept_weights import KeptWeights
from yatt_core.engines.rollout.served.shared_bucket import BucketReader
from yatt_core.engines.tensor_bits import as_tensor
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Piece
from yatt_core.wire.parts import TensorPart, whole_box

Part = TensorPart[torch.Tensor]
SHAPES = {
    "embed.weight": (6, 4),
    "layers.0.q.weight": (4, 4),
    "layers.0.k.weight": (2, 4),
    "layers.1.q.weight": (4, 4),
    "layers.10.q.weight": (4, 4),
    "norm.weight": (4,),
    "norm.bias": (4,),
}


def whole(name: str, value: float, kind: str = "float32") -> Piece:
    shape = SHAPES[name]
    return Piece(name, shape, whole_box(shape), kind, np.full(shape, value, np.float32))


def names_in(kept: KeptWeights) -> list[list[str]]:
    return [[place.name for place in shared.frame.places] for shared in kept.buckets(with_digests=False)]


def update(kept: KeptWeights, *pieces: Piece) -> list[list[str]]:
    kept.begin()
    for piece in pieces:
        kept.put(piece)
    found = names_in(kept)
    kept.end()
    return found


def test_all_tensors_of_a_layer_go_together_if_one_has_changed_and_so_do_all_others() -> None:
    kept = KeptWeights(SHAPES, "float32")
    assert update(kept, *(whole(name, 1.0) for name in SHAPES)) == [list(SHAPES)]
    assert update(kept) == [], "nothing has changed"
    layer = ["layers.0.q.weight", "layers.0.k.weight"]
    assert update(kept, whole("layers.0.k.weight", 2.0)) == [layer]
    assert update(kept, whole("layers.1.q.weight", 2.0)) == [["layers.1.q.weight"]], "not layer 10"
    # An engine may have fused any of them: their names do not tell.
    assert update(kept, whole("norm.bias", 2.0)) == [["embed.weight"], ["norm.weight", "norm.bias"]]
    kept.close()


def test_buckets_are_no_larger_than_asked_for_and_readable_elsewhere() -> None:
    kept = KeptWeights(SHAPES, "bfloat16", most_bytes=150)
    kept.begin()
    for number, name in enumerate(SHAPES):
        kept.put(whole(name, number + 1.0))
    found = list(kept.buckets(with_digests=True))
    assert all(shared.nbytes <= 150 and shared.lasts for shared in found) and len(found) > 2
    reader = BucketReader(torch.device("cpu"))
    values = dict[str, torch.Tensor]()
    for shared in found:
        bucket = reader.open(shared)
        bucket.require_intact()
        values |= {piece.name: as_tensor(piece.values, piece.kind) for piece in bucket.pieces()}
    for number, (name, shape) in enumerate(SHAPES.items()):
        assert torch.equal(values[name], torch.full(shape, number + 1.0, dtype=torch.bfloat16))
    kept.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_model(tmp_path, "tied")
    return tmp_path


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    made = served(folder, monkeypatch)
    yield made
    made.close()


def test_an_update_that_cannot_pause_responses_resumes_none(engine: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise InfrastructureError("responses cannot be paused")

    monkeypatch.setattr(engine._lock, "pause", fail)
    monkeypatch.setattr(engine._lock, "resume", lambda: pytest.fail("nothing was paused"))
    with pytest.raises(InfrastructureError, match="cannot be paused"):
        engine.begin_update(1)


def sent(parts: Sequence[Sequence[Part]], shapes: Any) -> dict[str, torch.Tensor]:
    """Returns what an engine should have: all parts, rounded to its type."""
    found = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    for part in (part for rank in parts for part in rank):
        found[part.name][part.box.slices((0,) * len(part.shape))] = part.values.to(torch.bfloat16)
    return found


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in sorted(tensors.items())}


def results(transfer: list[Future[int]]) -> list[int]:
    return [each.result() for each in transfer]


def test_changes_of_sharded_trainers_lead_to_the_bits_of_all_weights(folder: Path, engine: Served) -> None:
    """Ranks divide matrices by rows, as FSDP2 does, or by columns, as Megatron does: few, all, none, NaN, the sign of zero."""
    members = Members(3, [engine])
    parts = sharded(folder, 0, 3)
    results(members.transfer(1, parts, "bfloat16", delta=True))
    for version, change in enumerate(CHANGES, start=2):
        for part in (part for rank in parts for part in rank):
            change(part.values)
        results(members.transfer(version, parts, "bfloat16", delta=True))
        assert engine.version == version and bits(engine.loaded) == bits(sent(parts, engine.shapes))


def test_after_a_failed_update_changes_are_refused_until_all_weights_have_come(folder: Path, engine: Served) -> None:
    members = Members(2, [engine])
    parts = sharded(folder, 0, 2)
    results(members.transfer(1, parts, "bfloat16", delta=True))
    engine._core.fails = True
    for part in (part for rank in parts for part in rank):
        few_numbers(part.values)
    failure = members.transfer(2, parts, "bfloat16", delta=True)[0].exception()
    assert "has ended" in str(failure) and engine.version == -1
    engine._core.fails = False
    for part in (part for rank in parts for part in rank):
        few_numbers(part.values)
    again = Members(2, [engine])
    results(again.transfer(3, parts, "bfloat16", delta=True))
    assert bits(engine.loaded) == bits(sent(parts, engine.shapes)), "the first transfer of new members is a whole one"


def test_changes_without_a_base_are_refused(folder: Path, engine: Served) -> None:
    other = Served(folder)
    members = Members(2, [other])
    parts = sharded(folder, 0, 2)
    results(members.transfer(1, parts, "bfloat16", delta=True))
    members.takers["rollout-0"] = engine
    failure = members.transfer(2, parts, "bfloat16", delta=True)[0].exception()
    assert isinstance(failure, InfrastructureError) and "only changes of" in str(failure)
    other.close()
