"""Each worker of a vLLM engine takes buckets from the memory of the GPU to which they came, for which host memory stands."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import lent_memory
from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, build_model, prompts_of, request_of, rows_of
from tests.engines.rollout.vllm.lending import LENT
from tests.engines.sync.members import Members
from tests.engines.sync.test_transfers import sharded
from tests.needs import NEEDS_VLLM
from yatt_core.engines import device_memory
from yatt_core.engines.rectangles import part_digests
from yatt_core.engines.rollout.served import process
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
from yatt_core.engines.sync import receiving
from yatt_core.spec.sections.accelerated import VllmRollout

pytestmark = [NEEDS_VLLM, pytest.mark.verify, pytest.mark.timeout(900)]
BUCKET = 1 << 15


@pytest.mark.parametrize("devices", [1, 2])
def test_workers_take_buckets_from_memory_that_is_lent(
    tmp_path: Path, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as through host memory, from two buffers that are used by turns, whole tensors and parts of them."""
    build_model(tmp_path, "paired" if devices == 2 else "wide")
    monkeypatch.setattr(process, "OF_THE_WORKFLOW", ())  # the engine's Python finds the tests by PYTHONPATH
    monkeypatch.setattr(device_memory, "lent", lent_memory.lent)
    lent = dict[int, object]()
    monkeypatch.setattr(lent_memory, "FILES", lent)
    spec = VllmRollout(instances=1, dtype="float32", tensor_parallel_size=devices)
    engine = ServedRolloutEngine(LENT, str(tmp_path), spec, MAX_PROMPT, MAX_NEW)
    ranks = sharded(tmp_path, 1, 2)
    digests = part_digests((part for rank in ranks for part in rank), "float32")

    def answers(version: int) -> Any:
        request = request_of(prompts_of([40, 9]), max_new_tokens=MAX_NEW, weight_version=version)
        return rows_of(engine.generate(request))

    def received(version: int) -> Any:
        members = Members(2, [engine], most_bytes=BUCKET)
        counted = list[int]()
        members.on_bucket = lambda name, number: counted.append(number)
        for each in members.transfer(version, ranks, "float32"):
            each.result()
        assert len(counted) > 4
        assert engine.rectangle_digests(list(digests)) == list(digests.values())
        return answers(version)

    with closing(engine):
        with monkeypatch.context() as patch:
            patch.setattr(receiving, "HOST", torch.device("meta"))
            borrowed = received(1)
        assert len(lent) == 2 and engine._memory.nbytes == 0, "nothing passed through the host's own memory"
        assert received(2) == borrowed and len(lent) == 2 and engine._memory.nbytes > 0
