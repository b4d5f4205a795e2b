"""The weights of the torch engine: refused, interrupted, rounded, tied, not finite."""

import numpy as np
import pytest

from tests.engines.rollout.cases import (
    prompts_of,
    request_of,
    rows_of,
    torch_case,
)
from yatt_core.engines.tensor_bits import write_piece
from yatt_core.errors import InfrastructureError, NumericError


def test_before_the_first_update_nothing_is_generated(model_folder):
    engine = torch_case(model_folder).engine
    assert engine.version == -1
    for version in (0, -1):
        with pytest.raises(InfrastructureError, match="version -1"):
            engine.generate(request_of(prompts_of([4]), weight_version=version))


def test_wrong_weights_are_refused_and_leave_the_engine_dirty(torch_engine):
    good = dict(torch_engine.weights(0))
    first = next(iter(good))
    cases = [
        ({**good, "model.extra": good[first]}, "model.extra"),
        ({name: tensor for name, tensor in good.items() if name != first}, rf"\b1 tensors.*{first}"),
        ({**good, first: good[first][:1]}, rf"{first} .*\[1"),
        ({**good, first: good[first].astype(np.int32)}, f"{first} .*int32"),
    ]
    for tensors, message in cases:
        torch_engine.engine.update_weights(good, 5)
        with pytest.raises(InfrastructureError, match=message):
            torch_engine.engine.update_weights(tensors, 6)
        assert torch_engine.engine.version == -1
        with pytest.raises(InfrastructureError, match=r"version -1.*version 5"):
            torch_engine.engine.generate(request_of(prompts_of([4]), weight_version=5))


def test_an_interrupted_update_leaves_the_engine_dirty(torch_engine, monkeypatch):
    """Half-way through the tensors some are new and some old, so neither version may be claimed."""
    copied = []

    def interrupt(whole, piece):
        copied.append(piece)
        if len(copied) == 3:
            raise MemoryError
        write_piece(whole, piece)

    monkeypatch.setattr("yatt_core.engines.rollout.own_tensors.write_piece", interrupt)
    with pytest.raises(MemoryError):
        torch_engine.engine.update_weights(torch_engine.weights(1), 1)
    assert torch_engine.engine.version == -1


def test_a_tied_head_may_come_under_either_name_and_is_never_stale(torch_engine, model_folder):
    tensors = dict(torch_engine.weights(1))
    assert "lm_head.weight" not in tensors
    request = request_of(prompts_of([5, 9]), samples=4, weight_version=1)
    torch_engine.engine.update_weights(tensors, 1)
    expected = rows_of(torch_engine.engine.generate(request))
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    torch_engine.engine.update_weights(torch_engine.weights(0), 0)
    torch_engine.engine.update_weights(tensors, 1)
    assert rows_of(torch_engine.engine.generate(request)) == expected


def test_weights_that_are_not_finite_are_named_and_do_no_lasting_harm(torch_engine):
    """A long prompt leaves NaN in slots that a later, shorter one masks but does not write: 0 x NaN is NaN."""
    request = request_of(prompts_of([3, 9]), samples=4)
    before = rows_of(torch_engine.engine.generate(request))
    broken = {name: np.full_like(tensor, np.nan) for name, tensor in torch_engine.weights(0).items()}
    for options in ({}, {"greedy": True}):
        torch_engine.engine.update_weights(broken, 3)
        with pytest.raises(NumericError, match="version 3"):
            torch_engine.engine.generate(request_of(prompts_of([200] * 9), weight_version=3, **options))
    torch_engine.engine.update_weights(torch_engine.weights(0), 0)
    assert rows_of(torch_engine.engine.generate(request)) == before
