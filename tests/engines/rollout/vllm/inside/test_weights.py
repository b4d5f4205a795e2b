"""A vLLM worker takes new weights through vLLM's own reload, whatever the rectangles and their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, VOCABULARY, Case, prompts_of, request_of, vllm_case_of
from tests.engines.rollout.vllm.reference import largest_gap, module_with
from tests.engines.rollout.vllm.test_held_weights import differing
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Place, WeightBucket, aligned, bucket_digest, buckets_of
from yatt_core.wire.parts import Box, whole_box

SMALL = 1e-4


def in_columns(case: Case, version: int) -> Iterator[WeightBucket]:
    """Yields the odd columns of every tensor's thirds, then the others; vectors are whole."""
    boxes = list[tuple[str, Any, Box]]()
    for turn in (1, 0, 2):
        for name, array in case.weights(version).items():
            if array.ndim == 1 and turn == 0:
                boxes.append((name, array, whole_box(array.shape)))
            elif array.ndim == 2:
                start, stop = (array.shape[1] * third // 3 for third in (turn, turn + 1))
                boxes.append((name, array, Box((0, start), (array.shape[0], stop - start))))
    half = len(boxes) // 2
    for number, part in enumerate((boxes[:half], boxes[half:])):
        places = list[Place]()
        end = 0
        for name, array, box in part:
            places.append(Place(name, array.shape, box, "float32", aligned(end)))
            end = places[-1].offset + places[-1].nbytes
        data = np.zeros(end, np.uint8)
        for place, (_, array, box) in zip(places, part, strict=True):
            place.of(data)[...] = array[box.slices((0,) * array.ndim)]
        yield WeightBucket(number, number == 1, tuple(places), data, bucket_digest(places, data))


def take(case: Case, version: int, buckets: Iterator[WeightBucket]) -> None:
    case.engine.begin_update(version)
    for bucket in buckets:
        case.engine.take(bucket)
    case.engine.end_update()


def test_rectangles_may_be_columns_in_any_order(case_here: Case) -> None:
    take(case_here, 1, in_columns(case_here, 1))
    assert not differing(case_here, 1)
    with pytest.raises(InfrastructureError, match="weights"):
        take(case_here, 2, iter(list(in_columns(case_here, 2))[:1]))
    take(case_here, 2, in_columns(case_here, 2))
    assert not differing(case_here, 2)


def test_buckets_that_arrive_in_the_engines_memory_are_taken_without_a_copy(case_here: Case) -> None:
    """In two places by turns, as a transfer fills them."""

    def arriving(version: int) -> Iterator[WeightBucket]:
        buckets = list(in_columns(case_here, version))
        held = case_here.engine.buffers(2, max(bucket.nbytes for bucket in buckets))
        assert [place.ctypes.data for place in held] == places.setdefault(0, [place.ctypes.data for place in held])
        for bucket, place in zip(buckets, held, strict=True):
            place[: bucket.nbytes] = bucket.data
            shared = case_here.engine._memory.share(replace(bucket, data=place[: bucket.nbytes]))
            assert shared.offset == place.ctypes.data - held[0].ctypes.data
            yield replace(bucket, data=place[: bucket.nbytes])

    places = dict[int, list[int]]()
    for version in (1, 2):
        take(case_here, version, arriving(version))
        assert not differing(case_here, version)


FAMILIES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True, "Qwen2ForCausalLM": False}


@pytest.mark.parametrize(("family", "tied"), FAMILIES.items(), ids=FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_family_takes_its_weights(family: str, tied: bool, dtype: str, tmp_path: Path, vllm_here: Any) -> None:
    import transformers

    kind = family.removesuffix("ForCausalLM")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 512}
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**sizes, tie_word_embeddings=tied)
    getattr(transformers, family)(config).save_pretrained(tmp_path)
    case = vllm_here(lambda: vllm_case_of(tmp_path, dtype=dtype))
    for version in (1, 2):
        take(case, version, buckets_of(case.weights(version).items(), 5000))
        assert not differing(case, version, dtype)
    if dtype == "float32":
        request = request_of(prompts_of([40, 3]), max_new_tokens=MAX_NEW, weight_version=2)
        assert largest_gap(module_with(tmp_path, case.weights(2)), request, case.engine.generate(request)) < SMALL


@pytest.mark.parametrize(
    ("device", "rank", "peers", "reads"),
    [
        ("cpu", 0, True, False),
        ("cuda:0", 0, False, True),
        ("cuda:1", 1, True, True),
        ("cuda:1", 1, False, False),
        ("cuda:0", 2, False, True),
    ],
)
def test_a_worker_reads_buckets_on_its_nodes_first_gpu_if_it_can_reach_it(
    device: str, rank: int, peers: bool, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third worker is the first one of another node, and gets them from there."""
    from yatt_core.engines.rollout.vllm.weights import WorkerMethods

    asked = list[tuple[int, int]]()
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: asked.append((own, other)) or peers)
    worker: Any = SimpleNamespace(
        device=torch.device(device), rank=rank, parallel_config=SimpleNamespace(local_world_size=2)
    )
    assert WorkerMethods.reads_gpu(worker) is reads and asked in ([], [(1, 0)])


def test_a_worker_has_copied_a_bucket_before_it_answers(case_here: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU copies are queued; without one, only that they are waited for."""
    from yatt_core.engines.rollout.vllm import weights

    waited = list[torch.device]()
    monkeypatch.setattr(weights, "wait_for", waited.append)
    take(case_here, 1, in_columns(case_here, 1))
    assert waited == [torch.device("cpu")] * 2


def test_workers_on_processors_read_host_memory(case_here: Case) -> None:
    assert not case_here.engine._memory._lends and "reads_gpu" not in case_here.engine.capabilities
