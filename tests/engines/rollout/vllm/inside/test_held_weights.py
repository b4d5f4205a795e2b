"""Weights that differ from what was sent are named, whatever vLLM made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.engines.rollout.vllm.inside.conftest import core_of
from tests.engines.rollout.vllm.test_held_weights import differing


def test_altered_weights_are_named(case_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector, a matrix of which only a packed copy is left, and a tied head that was not packed again."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    from yatt_core.engines.rollout.vllm import weights

    (modules,) = core_of(case_here).collective_rpc(lambda worker: dict(worker.model_runner.get_model().named_modules()))
    layer = "model.layers.1"
    assert not differing(case_here, 0)
    with torch.no_grad():
        modules[f"{layer}.input_layernorm"].weight[3] += 1e-3
        down = modules[f"{layer}.mlp.down_proj"]
        down.weight = nn.Parameter(torch.from_numpy(np.array(case_here.weights(0)[f"{layer}.mlp.down_proj.weight"])))
        down.weight[5, 7] += 1e-3
        dispatch_cpu_unquantized_gemm(down, remove_weight=True)
    assert differing(case_here, 0) == [f"{layer}.input_layernorm.weight", f"{layer}.mlp.down_proj.weight"]
    monkeypatch.setattr(weights, "refresh_tied_head", lambda _: None)
    case_here.engine.update_weights(case_here.weights(1), 1)
    assert differing(case_here, 1) == ["model.embed_tokens.weight"]
