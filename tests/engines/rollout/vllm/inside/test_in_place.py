"""New weights are written to where a vLLM worker computes with them, whatever the rectangles and their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, VOCABULARY, Case, prompts_of, request_of, rows_of, vllm_case_of
from tests.engines.rollout.vllm.inside.conftest import weights_of_worker
from tests.engines.rollout.vllm.reference import largest_gap, module_with
from tests.engines.rollout.vllm.test_held_weights import SHAPES, WIDTH, differing, packed, worker
from yatt_core.engines.rollout.vllm import weights
from yatt_core.engines.rollout.vllm.held_weights import joined_parts
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Changed, Piece, Place, WeightBucket, aligned, bucket_digest, buckets_of
from yatt_core.wire.parts import Box, whole_box

SMALL = 1e-4
HEAD = "model.embed_tokens.weight"
"""The head of this model is tied to the embeddings."""


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


def test_the_answers_have_the_bits_of_an_update_by_vllm(case_here: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for version, way in ((1, True), (2, False), (3, True)):
        monkeypatch.setattr(weights_of_worker(case_here), "_in_place", way)
        case_here.engine.update_weights(case_here.weights(1 if version < 3 else 3), version)
        request = request_of(prompts_of([5, 70, 33]), samples=2, max_new_tokens=MAX_NEW, weight_version=version)
        found.append(rows_of(case_here.engine.generate(request)))
    assert found[0] == found[1] != found[2]


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


@pytest.mark.parametrize("grows", [False, True])
def test_freed_memory_is_given_back_while_memory_grows(
    case_here: Case, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    given_back = list[str]()
    memory = itertools.count(step=1 << 30 if grows else 0)
    monkeypatch.setattr(weights, "give_back_freed_memory", lambda: given_back.append("freed"))
    monkeypatch.setattr(weights, "private_bytes", lambda: next(memory))
    buckets = list(in_columns(case_here, 3))
    take(case_here, 3, iter(buckets))
    pieces = sum(len(bucket.places) for bucket in buckets)
    assert len(given_back) == 1 + grows * pieces, "at the end, and after each piece while memory grows"


def test_matrices_to_be_packed_have_gaps_between_rows_and_use_memory_again() -> None:
    from yatt_core.engines.rollout.vllm.in_place import Scratch

    scratch = Scratch()
    first = scratch.matrix(8, 1024, torch.float32)
    assert first.shape == (8, 1024) and first.stride() == (1024 + 16, 1)
    other = scratch.matrix(8, 1024, torch.float32)
    scratch.give_back(first)
    assert scratch.matrix(8, 1024, torch.float32).data_ptr() == first.data_ptr() != other.data_ptr()
    assert scratch.nbytes == 2 * 8 * (1024 + 16) * 4
    scratch.give_back(torch.empty(8, 1024))
    assert scratch.nbytes == 8 * (1024 + 16 + 16) * 4, "what is not used again does not count"
    assert scratch.matrix(8, 512, torch.float32).shape == (8, 512)


def test_the_head_is_packed_once_it_is_complete_and_not_in_part(case_here: Case) -> None:
    from yatt_core.engines.rollout.vllm.in_place import TensorsInPlace

    model = weights_of_worker(case_here)._model
    tensors = TensorsInPlace(model)
    head = model.lm_head
    old = head.cpu_linear
    values = case_here.weights(1)[HEAD]
    rows, width = values.shape
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        assert head.cpu_linear is old
        box = Box((start, 0), (stop - start, width))
        tensors.put(HEAD, Piece(HEAD, (rows, width), box, "float32", values[start:stop]))
    assert head.cpu_linear is not old and not head.weight.is_contiguous()


def test_changes_alone_and_unknown_tensors_are_refused(case_here: Case) -> None:
    from yatt_core.engines.rollout.vllm.in_place import TensorsInPlace

    tensors = TensorsInPlace(weights_of_worker(case_here)._model)
    name = "model.norm.weight"
    shape = (64,)
    changed = Changed(np.zeros(1, np.int64), np.ones(1, np.int8))
    piece = Piece(name, shape, whole_box(shape), "float32", np.zeros(0, np.float32), changed)
    with pytest.raises(InfrastructureError, match=f"only changes of {name}"):
        tensors.put(name, piece)
    with pytest.raises(InfrastructureError, match="no tensor other"):
        tensors.put("other", Piece("other", shape, whole_box(shape), "float32", np.zeros(64, np.float32)))


def test_workers_that_divide_a_model_each_take_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, so that a worker's matrix is complete while the other's still lacks rows."""
    from yatt_core.engines.rollout.vllm import in_place

    monkeypatch.setattr(in_place, "dispatch_cpu_unquantized_gemm", lambda module, remove_weight: packed(module))
    noise = torch.Generator().manual_seed(0)
    shapes = {**SHAPES, "norm": (WIDTH,), "embed": (5, WIDTH)}
    old, new = ({name: torch.randn(shape, generator=noise) for name, shape in shapes.items()} for _ in range(2))
    names = {name: f"{name}_proj.weight" if name in SHAPES else f"{name}.weight" for name in new}
    held = [worker(rank, old, old["k"]) for rank in range(2)]
    for each in held:
        model: Any = each._modules[""]
        model["gate_up_proj"].output_partition_sizes = [2, 2]
        model["o_proj"].output_partition_sizes = [WIDTH]
        model.lm_head = model["embed"]
        tensors = in_place.TensorsInPlace(model)
        for name, tensor in new.items():
            for row in range(len(tensor)):
                box = Box((row, *[0] * (tensor.dim() - 1)), (1, *tensor.shape[1:]))
                values = tensor[row : row + 1].numpy()
                tensors.put(names[name], Piece(names[name], tuple(tensor.shape), box, "float32", values))
        tensors.end()
    for name, tensor in new.items():
        parts = [part for each in held if (part := each.part(names[name], tuple(tensor.shape))) is not None]
        whole = joined_parts(tuple(tensor.shape), parts)
        assert whole is not None and torch.equal(whole, tensor), name


FAMILIES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True, "Qwen2ForCausalLM": False}


@pytest.mark.parametrize(("family", "tied"), FAMILIES.items(), ids=FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_family_takes_its_weights_in_place(
    family: str, tied: bool, dtype: str, tmp_path: Path, vllm_here: Any
) -> None:
    import transformers

    kind = family.removesuffix("ForCausalLM")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 512}
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**sizes, tie_word_embeddings=tied)
    getattr(transformers, family)(config).save_pretrained(tmp_path)
    case = vllm_here(lambda: vllm_case_of(tmp_path, dtype=dtype))
    assert weights_of_worker(case)._in_place
    for version in (1, 2):
        take(case, version, buckets_of(case.weights(version).items(), 5000))
        assert not differing(case, version, dtype)
    if dtype == "float32":
        request = request_of(prompts_of([40, 3]), max_new_tokens=MAX_NEW, weight_version=2)
        assert largest_gap(module_with(tmp_path, case.weights(2)), request, case.engine.generate(request)) < SMALL


def test_what_is_not_known_takes_vllms_way(case_here: Case) -> None:
    from yatt_core.engines.rollout.vllm.in_place import ARCHITECTURES, takes_in_place

    model = weights_of_worker(case_here)._model
    assert takes_in_place(model, ["Qwen2ForCausalLM"]) and set(FAMILIES) == ARCHITECTURES
    assert not takes_in_place(model, ["OtherForCausalLM"])
    quantised = torch.nn.Module()
    quantised.layer = torch.nn.Linear(2, 2)
    vars(quantised.layer)["quant_method"] = object()
    assert not takes_in_place(quantised, ["Qwen2ForCausalLM"])
