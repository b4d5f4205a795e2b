"""One engine over two nodes: the tokens of one device, new weights in each worker, and its end with either node's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.engines.rollout.cases import build_model, vllm_case_of, weights_of
from tests.engines.rollout.served.test_process import is_gone
from tests.engines.rollout.vllm.companions import spanned_case_of
from tests.engines.rollout.vllm.reference import largest_gap, module_with
from tests.engines.rollout.vllm.test_parallel import SMALL, batch
from tests.needs import NEEDS_VLLM
from yatt_core.engines.rectangles import rectangle_digest
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import buckets_of
from yatt_core.wire.parts import Rectangle, whole_box

pytestmark = [NEEDS_VLLM, pytest.mark.verify, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "paired"
    build_model(made, "paired")
    return made


@pytest.fixture(scope="module")
def single(folder: Path) -> Iterator:
    case = vllm_case_of(folder)
    yield case
    case.engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"pipeline_parallel_size": 2}, id="stages"),
        pytest.param({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, id="stages-of-two"),
    ],
)
def test_two_nodes_give_the_tokens_of_one_device_after_each_update(settings, single, folder):
    case, companions = spanned_case_of(folder, **settings)
    for version in (0, 1):
        for each in (case, single):
            each.engine.begin_update(version)
            for bucket in buckets_of(weights_of(folder, version).items(), 20_000):
                each.engine.take(bucket)
            each.engine.end_update()
        both, one = (each.engine.generate(batch(version)) for each in (case, single))
        assert both.tokens.tolist() == one.tokens.tolist()
        assert np.abs(both.log_probs - one.log_probs).max() < SMALL
        assert largest_gap(module_with(folder, weights_of(folder, version)), batch(version), both) < SMALL
    held = {
        Rectangle(name, tensor.shape, whole_box(tensor.shape), "float32"): tensor
        for name, tensor in weights_of(folder, 1).items()
    }
    assert case.engine.rectangle_digests(list(held)) == [
        rectangle_digest(rectangle, torch.from_numpy(tensor)) for rectangle, tensor in held.items()
    ]
    (worker, *_) = companions.workers
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="second node is lost"):
        for _ in range(100):
            case.engine.generate(batch(1))
    assert case.engine.is_lost and is_gone(case.engine._core.pid) and not psutil.pid_exists(companions.process.pid)
