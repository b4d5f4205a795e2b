"""Sharded trainers read and hold their own part of a model, with the values of the whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Gemma2Config, Gemma2ForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from tests.engines.train.test_dense_passes import SIZES, make_model
from tests.needs import NEEDS_PEFT
from yatt_core.engines.adapters import add_adapters
from yatt_core.engines.train.fsdp2 import loading
from yatt_core.engines.train.fsdp2.loading import load_sharded
from yatt_core.engines.train.fsdp2.sharding import Sharding, sharded_parameters
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.errors import ConfigurationError
from yatt_core.models import tensor_files
from yatt_core.models.loading import load_causal_lm
from yatt_core.sharded_rows import own_rows
from yatt_core.spec.sections.accelerated import Fsdp2Trainer
from yatt_core.spec.sections.trainer import LoraSpec

RANKS = 2


@pytest.fixture(params=range(RANKS))
def join(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Returns a function that joins a group whose other rank does nothing.

    Call it after models are saved, since transformers saves them on rank 0 only.
    """
    yield lambda: distributed.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=RANKS)
    close_process_group()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the numbers of elements read from files."""
    counts: list[int] = []
    original = tensor_files.StoredTensor.__getitem__

    def counted(self: Any, slices: Any) -> torch.Tensor:
        found = original(self, slices)
        counts.append(found.numel())
        return found

    monkeypatch.setattr(tensor_files.StoredTensor, "__getitem__", counted)
    return counts


def sharding(**options: Any) -> Sharding:
    return Sharding(Fsdp2Trainer(ranks=RANKS, dtype="float32", **options), RANKS, torch.device("cpu"))


def check(model: nn.Module, whole: nn.Module) -> int:
    """Compares this rank's rows, and all buffers, with a whole model's; returns the number of elements it holds."""
    parameters = sharded_parameters(model)
    assert list(parameters) == [name for name, _ in whole.named_parameters()]
    for name, wanted in whole.named_parameters():
        assert torch.equal(parameters[name].to_local(), wanted[own_rows(parameters[name])]), name
        assert parameters[name].requires_grad == wanted.requires_grad
    buffers = dict(whole.named_buffers())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name.replace("_checkpoint_wrapped_module.", "")]), name
    return sum(parameter.to_local().numel() for parameter in parameters.values())


@pytest.mark.parametrize("name", ["qwen2-tied", "llama-biased", "qwen3"])
@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True, "cpu_offload": True}], ids=["", "options"])
def test_a_rank_reads_its_own_rows_and_nothing_else(
    name: str,
    options: dict[str, Any],
    join: Callable[[], None],
    read: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_model(name).save_pretrained(tmp_path)
    whole = load_causal_lm(str(tmp_path), "float32")
    join()
    monkeypatch.setattr(loading, "load_causal_lm", None)
    model = load_sharded(str(tmp_path), "float32", sharding(**options))
    assert check(model, whole) == sum(read)
    assert sum(read) < 0.6 * sum(parameter.numel() for parameter in whole.parameters())


@NEEDS_PEFT
def test_adapters_have_the_values_that_a_whole_model_gets(join: Callable[[], None], tmp_path: Path) -> None:
    make_model("qwen3").save_pretrained(tmp_path)

    def change(model: nn.Module) -> None:
        add_adapters(model, LoraSpec(rank=2, targets=("q_proj", "down_proj")), 5)

    whole = load_causal_lm(str(tmp_path), "float32")
    change(whole)
    join()
    check(load_sharded(str(tmp_path), "float32", sharding(), change), whole)
    assert any(parameter.any() for name, parameter in whole.named_parameters() if "lora_A" in name)


def _mixture() -> Any:
    """Returns a model that transformers stores with one tensor for each expert, and holds with one for all."""
    # The kernel for experts needs rows of whole vectors.
    sizes = SIZES | {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
    return MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=2))


def _gemma() -> Any:
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, attn_logit_softcapping=0.5))


def test_a_model_that_is_stored_in_another_form_is_read_whole(join: Callable[[], None], tmp_path: Path) -> None:
    torch.manual_seed(0)
    _mixture().save_pretrained(tmp_path)
    join()
    check(load_sharded(str(tmp_path), "float32", sharding()), load_causal_lm(str(tmp_path), "float32"))


def _exchange_head(model: Any) -> None:
    model.set_output_embeddings(nn.Linear(model.config.hidden_size, 1, bias=False))


@pytest.mark.parametrize("change", [None, _exchange_head], ids=["", "critic"])
def test_attention_that_does_not_suit_a_model_is_found_on_shards(
    change: Callable[[nn.Module], object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Since transformers 5.24 Gemma-2 says that fused attention does not suit it; other models may say so wrongly.
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    torch.manual_seed(0)
    _gemma().save_pretrained(tmp_path)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    how = Sharding(Fsdp2Trainer(ranks=1, dtype="float32"), 1, torch.device("cpu"))
    try:
        with pytest.raises(ConfigurationError, match="attn_logit_softcapping"):
            load_sharded(str(tmp_path), "float32", how, change)
    finally:
        close_process_group()


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    make_model("qwen3").config.save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="safetensors"):
        load_sharded(str(tmp_path), "float32", sharding())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        load_sharded(str(tmp_path), "float32", sharding())
