"""Aligned engines: the trainer computes the sampler's log-probabilities to the last bit, from tokens and weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.memory import peak_of
from tests.engines.rollout.cases import build_model, prompts_of, request_of, rows_of
from tests.engines.train.test_dense_passes import make_model
from yatt_core.engines.dense import aligned as arithmetic
from yatt_core.engines.dense.aligned import attend_aligned, causal_mask, require_cores
from yatt_core.engines.dense.pieces import QUERY_BLOCK
from yatt_core.engines.rollout.torch import joint_attention
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.model.forward import assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.generation import GenerateResult
from yatt_core.spec.sections.trainer import AdamWSpec
from yatt_core.wire.ragged import offsets_of

TYPES = ("float32", "bfloat16")
SAMPLES = 3
LENGTHS = [1, 5, 16, 63, 64, 65, 130]
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Answered:
    """Prompts and sampled responses, as a trainer reads them (`Sequences`)."""

    prompt_tokens: npt.NDArray[np.int32]
    prompt_offsets: npt.NDArray[np.int64]
    response_tokens: npt.NDArray[np.int32]
    response_offsets: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]
    media: tuple[()] = ()
    support: None = None
    held: None = None


def read_by_trainer(prompts: list[npt.NDArray[np.int32]], result: GenerateResult, samples: int = SAMPLES) -> Answered:
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    return Answered(
        prompt_tokens=np.concatenate(repeated),
        prompt_offsets=offsets_of(np.array([len(prompt) for prompt in repeated])),
        response_tokens=result.tokens,
        response_offsets=offsets_of(result.lengths.astype(np.int64)),
        loss_mask=np.ones(len(result.tokens), np.bool_),
    )


def passes_of(model: Any, dtype: str, aligned: bool = True) -> DensePasses:
    optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
    return DensePasses(model, optimizer, TEMPERATURE, dtype, aligned=aligned)


def differing(passes: DensePasses, data: Answered, result: GenerateResult, parts: int, backward: bool = False) -> int:
    """Counts the tokens whose log-probability differs from the sampler's; samples are shuffled into micro-batches."""
    order = np.random.default_rng(parts).permutation(len(result.lengths))
    batches = [assemble(data, part) for part in np.array_split(order, parts)]
    found: list[npt.NDArray[np.float32]] = []
    if backward:
        for batch in batches:

            def loss(_: object, log_probs: torch.Tensor, __: object) -> torch.Tensor:
                found.append(log_probs.detach().numpy().copy())
                return log_probs.sum()

            passes.backward([batch], loss)
    else:
        found = passes.score(batches)
    expected = [result.log_probs[batch.positions] for batch in batches]
    return int((np.concatenate(found) != np.concatenate(expected)).sum())


@pytest.fixture(scope="module", params=["tied", "odd"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / request.param
    build_model(made, request.param)
    return made


def sampled(folder: Path, dtype: str, aligned: bool = True) -> tuple[list[npt.NDArray[np.int32]], GenerateResult]:
    prompts = prompts_of(LENGTHS)
    request = request_of(prompts, SAMPLES, max_new_tokens=70, temperature=TEMPERATURE)
    runner = DenseRunner(load_causal_lm(str(folder), dtype), aligned=aligned)
    return prompts, decode(runner, request, max_num_seqs=12)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_trainer_computes_the_samplers_log_probabilities_to_the_last_bit(folder: Path, dtype: str) -> None:
    prompts, result = sampled(folder, dtype)
    data = read_by_trainer(prompts, result)
    assert len(result.tokens) > 200
    passes = passes_of(load_causal_lm(str(folder), "float32"), dtype)
    assert [differing(passes, data, result, parts) for parts in (1, 3, 21)] == [0, 0, 0]
    assert differing(passes, data, result, 2, backward=True) == 0, "the pass that learns computes the same"
    plain = passes_of(load_causal_lm(str(folder), "float32"), dtype, aligned=False)
    assert differing(plain, data, result, 3) > 0, "which other kernels do not"


@pytest.mark.parametrize("dtype", TYPES)
def test_an_aligned_response_does_not_depend_on_its_batch(folder: Path, dtype: str) -> None:
    engine = TorchRolloutEngine(str(folder), dtype, 320, 24, folder, folder_version=0, aligned=True)
    assert engine.capabilities["batch_invariant"]
    prompts = prompts_of([1, 8, 200, 65, 40, 3, 90, 12])
    seeds = np.arange(8, dtype=np.uint64)[:, None]

    def answer(members: list[int]) -> list[tuple[bytes, bytes, int]]:
        return rows_of(engine.generate(request_of([prompts[i] for i in members], seeds=seeds[members])))

    together = answer(list(range(8)))
    for members in ([0], [5], [2, 7], [7, 6, 1, 3, 0]):
        assert answer(members) == [together[member] for member in members]


def test_pieces_in_another_order_do_not_go_unnoticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler whose attention adds its pieces from the last to the first is another function of the same weights."""
    taken = arithmetic.taken_from

    def reversed_pieces(masses: torch.Tensor, values: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        pieces = [slice(start, start + 64) for start in range(0, masses.shape[-1], 64)]
        found = before
        for piece in reversed(pieces):
            found = taken(masses[..., piece], values[..., piece, :], found)
        assert found is not None
        return found

    monkeypatch.setattr(joint_attention, "taken_from", reversed_pieces)
    prompts, result = sampled(folder, "float32")
    passes = passes_of(load_causal_lm(str(folder), "float32"), "float32")
    assert differing(passes, read_by_trainer(prompts, result), result, 3) > 0


@pytest.mark.parametrize("name", ["llama-biased", "qwen2-tied", "qwen3"])
def test_aligned_gradients_are_those_of_the_other_kernels(name: str) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 24, length).astype(np.int32) for length in (2, 9)]
    lengths = np.array([3, 1, 7, 5, 5, 4])
    result = GenerateResult(
        tokens=rng.integers(0, 24, int(lengths.sum())).astype(np.int32),
        log_probs=np.zeros(int(lengths.sum()), np.float32),
        lengths=lengths.astype(np.int32),
        finish=np.zeros(6, np.int8),
        weight_version=0,
        seconds=0.0,
    )
    data = read_by_trainer(prompts, result)
    gradients = []
    for aligned in (True, False):
        model = make_model(name)
        optimizer = FlatAdamW(model, AdamWSpec(), neighbours_of(model))
        passes = DensePasses(model, optimizer, TEMPERATURE, "float32", aligned=aligned)
        passes.backward([assemble(data, np.arange(6))], lambda _, log_probs, __: log_probs.sum())
        gradients.append(optimizer.gradients.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


def test_attention_over_pieces_is_attention() -> None:
    noise = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 128, heads, 8, generator=noise) for heads in (4, 2, 2))
    found = attend_aligned(queries, keys, values, causal_mask(128, 128, queries.device))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(states.transpose(1, 2) for states in (queries, keys, values)), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_block_of_queries_changes_no_bits(heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(1)
    queries = torch.randn(2, 130, heads, 8, generator=noise).to(dtype)
    keys, values = (torch.randn(2, 192, 2, 8, generator=noise).to(dtype) for _ in range(2))
    mask = causal_mask(130, 192, queries.device).repeat(2, 1, 1, 1)
    mask[1, :, :, 1:40] = -torch.inf
    found = []
    for block in (1, 3, 4, 64, 129, 500):
        monkeypatch.setattr(arithmetic, "QUERY_BLOCK", block)
        found.append(attend_aligned(queries, keys, values, mask))
    assert [torch.equal(each, found[0]) for each in found] == [True] * 6
    alone = attend_aligned(queries[1:, 7:8], keys[1:], values[1:], mask[1:, :, 7:8])
    assert torch.equal(alone, found[0][1:, 7:8])


def test_attention_over_many_queries_holds_a_block_of_scores_and_keeps_one_mask() -> None:
    noise = torch.Generator().manual_seed(0)
    count = 1024
    queries, keys, values = (
        torch.randn(1, count, heads, 8, generator=noise, requires_grad=True) for heads in (8, 2, 2)
    )
    mask = causal_mask(count, count, queries.device)
    kept: list[torch.Tensor] = []
    block_bytes = 4 * 8 * QUERY_BLOCK * count

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def attend() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            attend_aligned(queries, keys, values, mask).sum().backward()

    assert peak_of(attend) < 4 * block_bytes
    assert {tensor.untyped_storage().data_ptr() for tensor in kept} == {
        tensor.untyped_storage().data_ptr() for tensor in (queries, keys, values, mask)
    }


def test_models_without_kernels_and_gpus_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^exact: aligned needs a dense .* but kernels: general"):
        TorchRolloutEngine(str(folder), "float32", 8, 8, folder, kernels="general", aligned=True)
    with pytest.raises(ConfigurationError, match=r"^exact: aligned holds on processors alone"):
        require_cores(torch.device("cuda", 0))
